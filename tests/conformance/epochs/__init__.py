"""Transactions at the last epoch of a producer id, with restarts between, on the bundled broker and on Apache Kafka."""
