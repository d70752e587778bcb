"""Schema changes: what they do to the tables of a graph."""
