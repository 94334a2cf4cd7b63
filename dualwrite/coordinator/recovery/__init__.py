"""Recovery: what a dead predecessor left in Kafka is committed or aborted, as the database decided."""
