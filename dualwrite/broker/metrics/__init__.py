"""The broker's metrics and its health, and the HTTP server that answers both."""
