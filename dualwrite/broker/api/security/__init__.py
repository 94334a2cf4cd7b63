"""Kafka's APIs about access control lists, credentials and authentication, one file each."""
