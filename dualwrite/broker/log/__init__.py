"""Partitions on disk, in Kafka's own format. The log knows nothing of the broker's decisions about record batches."""
