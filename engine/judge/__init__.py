"""The judgement of a write on a pinned state: the rows that land, the rows they displace, and the violations."""
