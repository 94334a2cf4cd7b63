"""Partitions on disk, in Kafka's own format. Knows record batches and nothing of what a broker decides about them."""
