"""Work that no writer waits for."""
