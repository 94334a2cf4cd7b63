"""The operations that a client may perform on a resource (KIP-430). Without ACLs, every client may perform all.

Source: Kafka's AclOperation (the codes) and AclEntry.supportedOperations.
"""

from collections.abc import Iterable

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12

ON_TOPIC = frozenset({_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS})
ON_CLUSTER = frozenset(
    {_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE}
)


def as_bits(operations: Iterable[int]) -> int:
    """``operations`` as bits of a number, for messages that have no set there."""
    return sum(1 << operation for operation in operations)
