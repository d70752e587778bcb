"""The pipeline: what Spark reads becomes one commit of a graph, and what does not fit goes to a table of rejects.

`yaml_nodes.py` reads the file, `config.py` gives it its meaning, `plan.py` holds it against the graph's schema;
`frames.py` and `conforming.py` make rows of it, `checks.py` judges them over many rows, `run.py` does all of it.
"""
