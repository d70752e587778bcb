"""What users reach a graph through: the command line, over the engine in this process."""
