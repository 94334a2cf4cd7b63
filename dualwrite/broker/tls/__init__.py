"""TLS of the broker's listeners: contexts from PEM files, their renewal while it runs, and the transport."""
