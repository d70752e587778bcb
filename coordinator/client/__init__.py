"""The client of a coordinator, and the coordinator as its clients find it."""
