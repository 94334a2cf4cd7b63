"""Kafka's APIs about transactions, one file each."""
