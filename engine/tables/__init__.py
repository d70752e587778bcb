"""The storage surface: every touch of a graph table's Lance dataset."""
