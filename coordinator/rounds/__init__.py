"""The decisions of a publisher, without I/O: which writes a round holds, which conflict, and which tenant is next."""
