"""Foundations of all packages: errors, ids, clocks, processes, failpoints. Imports no other package of the engine."""
