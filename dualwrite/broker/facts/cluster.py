"""Facts about the cluster itself, stored as JSON in the journal ``__cluster_metadata-0``. Kafka has another format."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dualwrite.broker.facts.acls import ACL_KIND, AclCreated, AclDeleted, AclFact, decode_acl, encode_acl
from dualwrite.broker.facts.credentials import (
    DECOY_KIND,
    SCRAM_KIND,
    CredentialFact,
    DecoySecretCreated,
    ScramCredentialDeleted,
    ScramCredentialSet,
    decode_credential,
    decode_secret,
    encode_credential,
)
from dualwrite.broker.facts.fields import LaterReleaseError


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
class GroupConfigured:
    """All settings that the group ``group`` has of its own, by name. Without any, this is a tombstone on disk."""

    group: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProducerIdsReserved:
    """Producer ids below ``before`` may have been allocated, and are never allocated again."""

    before: int


ClusterFact = (
    ClusterCreated
    | TopicCreated
    | TopicDeleted
    | InternalTopicCreated
    | BrokerConfigured
    | GroupConfigured
    | ProducerIdsReserved
    | AclFact
    | CredentialFact
)


def encode_fact(fact: ClusterFact) -> tuple[bytes, bytes | None]:
    """The key and the value of the record that stores ``fact``."""
    if isinstance(fact, ClusterCreated):
        return b"cluster", _json({"cluster_id": fact.cluster_id})
    if isinstance(fact, ProducerIdsReserved):
        return b"producer-ids", _json({"before": fact.before})
    if isinstance(fact, BrokerConfigured):
        return b"broker:" + fact.node.encode(), _json({"configs": dict(fact.configs)})
    if isinstance(fact, GroupConfigured):
        return b"group:" + fact.group.encode(), _json({"configs": dict(fact.configs)}) if fact.configs else None
    if isinstance(fact, InternalTopicCreated):
        return b"internal:" + fact.name.encode(), _json({})
    if isinstance(fact, AclCreated | AclDeleted):
        key, acl = encode_acl(fact)
        return key, None if acl is None else _json(acl)
    if isinstance(fact, TopicDeleted):
        return _topic_key(fact.name), None
    if isinstance(fact, ScramCredentialSet | ScramCredentialDeleted | DecoySecretCreated):
        key, credential = encode_credential(fact)
        return key, None if credential is None else _json(credential)
    body: dict[str, object] = {
        "topic_id": str(fact.topic_id),
        "partitions": fact.partitions,
        "configs": dict(fact.configs),
    }
    return _topic_key(fact.name), _json(body)


def decode_fact(key: bytes, value: bytes | None) -> ClusterFact:
    """The fact that a record stores.

    :raises ValueError: if the record is damaged; LaterReleaseError if this release does not know facts of that kind.
    """
    kind, _, name = key.decode().partition(":")
    decode = _DECODERS.get(kind)
    if decode is None:
        raise LaterReleaseError(f"cluster fact of unknown kind {kind!r}")
    if value is None and kind not in _WITH_TOMBSTONES:
        raise ValueError(f"cluster fact {kind!r} has no value")
    try:
        return decode(name, None if value is None else json.loads(value))
    except (KeyError, TypeError) as error:
        raise ValueError(f"cluster fact {kind!r} lacks {error}") from error


def _decode_topic(name: str, body: Mapping[str, Any] | None) -> TopicCreated | TopicDeleted:
    if body is None:
        return TopicDeleted(name)
    return TopicCreated(name, uuid.UUID(body["topic_id"]), body["partitions"], body["configs"])


_DECODERS: Mapping[str, Callable[[str, Any], ClusterFact]] = {
    "cluster": lambda _, body: ClusterCreated(body["cluster_id"]),
    "producer-ids": lambda _, body: ProducerIdsReserved(body["before"]),
    "internal": lambda name, _: InternalTopicCreated(name),
    "broker": lambda name, body: BrokerConfigured(name, body["configs"]),
    "group": lambda name, body: GroupConfigured(name, {} if body is None else body["configs"]),
    "topic": _decode_topic,
    ACL_KIND: decode_acl,
    SCRAM_KIND: decode_credential,
    DECOY_KIND: lambda _, body: DecoySecretCreated(decode_secret(body["secret"])),
}
"""By the kind of the fact; the value is None for a tombstone."""
_WITH_TOMBSTONES = frozenset({"topic", "group", ACL_KIND, SCRAM_KIND})


def _topic_key(name: str) -> bytes:
    return b"topic:" + name.encode()


def _json(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
