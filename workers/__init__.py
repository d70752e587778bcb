"""Stateless work that other processes do in parallel for the engine; empty until there is some."""
