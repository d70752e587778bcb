"""Benchmarks of omniray beside plain Lance and other systems."""
