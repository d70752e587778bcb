"""The encoding of requests and answers between clients and actors."""
