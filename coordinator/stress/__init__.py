"""The stress test: writers with a seeded workload, their histories, and the checker that judges them."""
