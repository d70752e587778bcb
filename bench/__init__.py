"""Benchmarks, and the S3 server that they and the fault tests run against."""
