"""Kafka's APIs that say which brokers there are and what they hold, one file each."""
