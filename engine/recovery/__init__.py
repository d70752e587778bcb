"""What crashes and foreign writers leave: found, decided upon, finished, cleared away or repaired."""
