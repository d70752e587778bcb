"""The stress test: writers with a seeded workload, the history of what they saw, and the checker that judges it."""
