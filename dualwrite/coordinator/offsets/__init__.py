"""Consumers' offsets as part of units of work."""
