"""What everything else may use: errors, ids, clocks, processes, failpoints. Imports no other package of the engine."""
