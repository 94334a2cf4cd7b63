"""Kafka's APIs that read and change settings, one file each."""
