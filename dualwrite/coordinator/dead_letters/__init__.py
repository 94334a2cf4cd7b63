"""Records that no unit of work can use go to a dead-letter topic, together with the consumer's offset."""
