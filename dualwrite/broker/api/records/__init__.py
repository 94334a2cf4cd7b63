"""Kafka's APIs that write, read and find records, one file each."""
