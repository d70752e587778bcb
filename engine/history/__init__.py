"""What a branch was: the line folded into `__manifest`, its lineage, audit and accepted schema."""
