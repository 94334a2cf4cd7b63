"""One connection to a broker as bytes, sans-I/O: opened first, then requests and their answers."""
