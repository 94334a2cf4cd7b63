"""One connection as frames, and the memory of all connections."""
