"""Everything about a client before its first request: listeners, limits, foreign protocols, handshakes."""
