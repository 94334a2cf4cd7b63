"""Kafka's APIs of settings, one file each."""
