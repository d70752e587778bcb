"""The coordinator on Ray, its client, the command line, and the stress test."""
