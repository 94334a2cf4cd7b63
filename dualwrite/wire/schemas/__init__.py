"""Schemas of the messages that kafka-python lacks, in the form of Apache Kafka's own schema files."""
