"""Recovery: commits or aborts a dead process's Kafka transactions, as the database decided."""
