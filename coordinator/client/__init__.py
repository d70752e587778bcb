"""The client of a coordinator, and how clients find, start and end the coordinator."""
