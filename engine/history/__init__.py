"""The history of a branch: the line folded into `__manifest`, its lineage, audit and accepted schema."""
