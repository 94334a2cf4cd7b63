"""Groups of the consumer protocol (KIP-848): the broker assigns partitions, and the members follow by heartbeats."""
