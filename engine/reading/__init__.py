"""Reads a branch: snapshots, groups of fragments, the change feed, differences of tables."""
