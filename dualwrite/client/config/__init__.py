"""librdkafka's configuration keys, read strictly, without I/O."""
