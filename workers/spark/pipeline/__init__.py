"""The pipeline: Spark reads sources, commits their rows in one commit, and writes rejected rows to a table.

`yaml_nodes.py` parses the file, `config.py` interprets it, `plan.py` checks it against the graph's schema; `frames.py`
and `conforming.py` make rows, `checks.py` judges them by the rules over many rows, `run.py` runs all of it.
"""
