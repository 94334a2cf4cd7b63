"""Partitions on disk, in Kafka's own format. Independent of the broker's decisions about record batches."""
