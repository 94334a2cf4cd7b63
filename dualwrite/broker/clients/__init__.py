"""What a broker knows of a client before its first request."""
