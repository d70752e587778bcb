"""The storage surface: every access to a graph table's Lance dataset."""
