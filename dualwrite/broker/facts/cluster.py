"""Facts about the cluster itself, stored as JSON in the journal ``__cluster_metadata-0``. Kafka has another format."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    """The data directory was created, with the cluster id that Metadata reports."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic was created or changed: its id (KIP-516), its number of partitions and its explicit settings.

    A change of partitions or settings writes a complete fact again, so only the last fact for a name counts.
    """

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic ``name`` was deleted. On disk this is a tombstone, which compaction may drop in the end."""

    name: str


@dataclass(frozen=True, slots=True)
class InternalTopicCreated:
    """The broker has created the directory of its internal topic ``name``. If it is missing later, it was lost."""

    name: str


@dataclass(frozen=True, slots=True)
class BrokerConfigured:
    """All dynamic settings of the running broker or of the cluster, by name.

    ``node`` is the id of the node that they apply to, or empty for every node. A node's own settings take precedence.
    """

    node: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProducerIdsReserved:
    """Producer ids below ``before`` may have been allocated, and are never allocated again."""

    before: int


ClusterFact = (
    ClusterCreated | TopicCreated | TopicDeleted | InternalTopicCreated | BrokerConfigured | ProducerIdsReserved
)


def encode_fact(fact: ClusterFact) -> tuple[bytes, bytes | None]:
    """The key and the value of the record that stores ``fact``."""
    if isinstance(fact, ClusterCreated):
        return b"cluster", _json({"cluster_id": fact.cluster_id})
    if isinstance(fact, ProducerIdsReserved):
        return b"producer-ids", _json({"before": fact.before})
    if isinstance(fact, BrokerConfigured):
        return b"broker:" + fact.node.encode(), _json({"configs": dict(fact.configs)})
    if isinstance(fact, InternalTopicCreated):
        return b"internal:" + fact.name.encode(), _json({})
    if isinstance(fact, TopicDeleted):
        return _topic_key(fact.name), None
    body: dict[str, object] = {
        "topic_id": str(fact.topic_id),
        "partitions": fact.partitions,
        "configs": dict(fact.configs),
    }
    return _topic_key(fact.name), _json(body)


def decode_fact(key: bytes, value: bytes | None) -> ClusterFact:
    """The fact that a record stores.

    :raises ValueError: if this release does not know the fact.
    """
    kind, _, name = key.decode().partition(":")
    if value is None:
        if kind == "topic":
            return TopicDeleted(name)
        raise ValueError(f"cluster fact {kind!r} has no value")
    try:
        body = json.loads(value)
        if kind == "cluster":
            return ClusterCreated(body["cluster_id"])
        if kind == "producer-ids":
            return ProducerIdsReserved(body["before"])
        if kind == "internal":
            return InternalTopicCreated(name)
        if kind == "broker":
            return BrokerConfigured(name, body["configs"])
        if kind == "topic":
            return TopicCreated(name, uuid.UUID(body["topic_id"]), body["partitions"], body["configs"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"cluster fact {kind!r} lacks {error}") from error
    raise ValueError(f"cluster fact of unknown kind {kind!r}")


def _topic_key(name: str) -> bytes:
    return b"topic:" + name.encode()


def _json(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
