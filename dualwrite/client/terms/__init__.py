"""Kafka's terms, without I/O: endpoints, versions, error classes, verbs, tokens."""
