"""What crosses the border between clients and actors."""
