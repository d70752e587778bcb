"""Stateless workers that stage loads in parallel: Ray tasks, Flight servers and Spark jobs."""
