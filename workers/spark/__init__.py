"""Spark: frames of any size become commits of a graph, and a graph's snapshots and changes become frames."""
