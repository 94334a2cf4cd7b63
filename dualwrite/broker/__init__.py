"""The bundled broker: a durable single-node Kafka-compatible broker with KIP-98, KIP-890 (part 2) and KIP-939."""
