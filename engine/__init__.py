"""The write path of a graph over Lance tables and object storage; imports neither Ray nor Spark."""
