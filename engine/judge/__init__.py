"""The judgement of a write on a pinned state: what lands, what it displaces, what stands against it."""
