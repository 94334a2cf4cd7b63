"""What the journals remember: frozen facts, and their form on disk. Memory is always the replay of these."""
