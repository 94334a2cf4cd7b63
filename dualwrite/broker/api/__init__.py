"""One file per Kafka API; its header is its specification. The order in each file: version, ACL, command, reply."""
