"""Branches of a graph and their merge."""
