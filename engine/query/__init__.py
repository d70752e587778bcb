"""The `.gq` language of mutations: read, check, and turn into values."""
