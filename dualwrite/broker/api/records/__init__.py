"""Kafka's APIs that write, read, find and delete records, one file each."""
