"""The Kafka client that no Python library offers: the control plane of transactions, over a sans-I/O protocol."""
