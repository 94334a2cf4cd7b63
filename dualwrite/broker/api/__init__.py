"""One file per Kafka API; its header is its spec. Each goes version -> ACL -> command -> reply."""
