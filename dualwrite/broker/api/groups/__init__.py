"""Kafka's APIs about consumer groups and their offsets, one file each."""
