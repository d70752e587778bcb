"""Spark: writes frames of any size to a graph in one commit, and reads snapshots and changes as frames."""
