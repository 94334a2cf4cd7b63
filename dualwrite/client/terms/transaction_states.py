"""States of a transaction, by the names of Kafka's TransactionState."""

ONGOING = "Ongoing"
"""The state of an open transaction."""

ENDING = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which the coordinator writes markers: the transaction ends soon."""
