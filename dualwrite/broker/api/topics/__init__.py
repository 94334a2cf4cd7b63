"""Kafka's APIs that make, grow and delete topics, one file each."""
