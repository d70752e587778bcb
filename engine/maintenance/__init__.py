"""Maintenance in the background: no writer waits for it."""
