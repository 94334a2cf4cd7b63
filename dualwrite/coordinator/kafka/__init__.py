"""The Kafka side: the two producers as participants, and the choice between them."""
