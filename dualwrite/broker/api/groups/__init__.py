"""Kafka's APIs of consumer groups and their offsets, one file each."""
