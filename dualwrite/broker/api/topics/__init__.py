"""Kafka's APIs that create, extend and delete topics, one file each."""
