"""Demonstrations that check themselves."""
