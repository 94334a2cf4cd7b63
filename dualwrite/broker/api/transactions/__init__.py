"""Kafka's APIs of transactions, one file each."""
