"""Facts about the cluster itself, kept as JSON in the journal ``__cluster_metadata-0`` (a form of our own)."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    """The data directory was made: the cluster's id, as Metadata reports it."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic as it is from here on: its id (KIP-516), its number of partitions and the settings that it was given.

    A change of partitions or settings is the same fact again, so that the last one for a name tells everything.
    """

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic ``name`` is gone. On disk this is a record without a value, which compaction may drop in the end."""

    name: str


@dataclass(frozen=True, slots=True)
class InternalTopicCreated:
    """The broker's own topic ``name`` has its directory: if it is missing from here on, it was lost."""

    name: str


@dataclass(frozen=True, slots=True)
class BrokerConfigured:
    """The settings that were given to the running broker, all of them, by name.

    ``node`` is whom they were given to: a node's id, or empty for every node, which the node's own then cover.
    """

    node: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProducerIdsReserved:
    """Producer ids below ``before`` may have been given out; none of them is ever given out again."""

    before: int


ClusterFact = (
    ClusterCreated | TopicCreated | TopicDeleted | InternalTopicCreated | BrokerConfigured | ProducerIdsReserved
)


def encode_fact(fact: ClusterFact) -> tuple[bytes, bytes | None]:
    """Key and value of the record that remembers ``fact``."""
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
    """The fact that a record remembers.

    :raises ValueError: if this release does not know it.
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
