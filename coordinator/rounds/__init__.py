"""The decisions of a publisher, without I/O: what goes into a round, who conflicts, whose turn it is."""
