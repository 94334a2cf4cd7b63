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
    """A topic, its id (KIP-516), its number of partitions and the settings that it was given."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProducerIdsReserved:
    """Producer ids below ``before`` may have been given out; none of them is ever given out again."""

    before: int


ClusterFact = ClusterCreated | TopicCreated | ProducerIdsReserved


def encode_fact(fact: ClusterFact) -> tuple[bytes, bytes]:
    """Key and value of the record that remembers ``fact``."""
    if isinstance(fact, ClusterCreated):
        return b"cluster", _json({"cluster_id": fact.cluster_id})
    if isinstance(fact, ProducerIdsReserved):
        return b"producer-ids", _json({"before": fact.before})
    body = {"topic_id": str(fact.topic_id), "partitions": fact.partitions, "configs": dict(fact.configs)}
    return b"topic:" + fact.name.encode(), _json(body)


def decode_fact(key: bytes, value: bytes) -> ClusterFact:
    """The fact that a record remembers.

    :raises ValueError: if this release does not know it.
    """
    kind, _, name = key.decode().partition(":")
    try:
        body = json.loads(value)
        if kind == "cluster":
            return ClusterCreated(body["cluster_id"])
        if kind == "producer-ids":
            return ProducerIdsReserved(body["before"])
        if kind == "topic":
            return TopicCreated(name, uuid.UUID(body["topic_id"]), body["partitions"], body["configs"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"cluster fact {kind!r} lacks {error}") from error
    raise ValueError(f"cluster fact of unknown kind {kind!r}")


def _json(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
