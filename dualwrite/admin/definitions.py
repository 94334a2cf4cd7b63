"""What topics were made with, for a program that makes the same ones elsewhere; and changes of what they are."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dualwrite.admin.connecting import DEFAULT_TIMEOUT, connected
from dualwrite.admin.views import TopicConfigEntry
from dualwrite.client.admin.cluster_client import ClusterClient, topic_id_text
from dualwrite.client.protocol.requests import VersionedRequest, metadata
from dualwrite.client.protocol.topic_requests import (
    BROKERS_DEFAULT,
    partition_addition,
    settings_change,
    topic_creation,
    topic_settings,
)
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode, error_name

_SET_ON_TOPIC = 1
"""Kafka's ConfigSource DYNAMIC_TOPIC_CONFIG."""
_AT_ONCE = 500
"""Most topics in one DescribeConfigs: each answers some forty settings."""


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A topic without its records.

    :param topic_id: as Kafka writes it; empty if the brokers know no topic ids.
    :param settings: all of them, also those that were not set on the topic.
    """

    name: str
    topic_id: str
    partitions: int
    is_internal: bool
    settings: tuple[TopicConfigEntry, ...]


@dataclass(frozen=True, slots=True)
class TopicAtCreation:
    """A topic as a cluster would create it.

    :param nodes: how many nodes the cluster has.
    :param replicas: the replication factor; None if DESCRIBE_CONFIGS on the topic is not granted.
    :param settings: all of them; empty as for ``replicas``.
    """

    nodes: int
    replicas: int | None
    settings: tuple[TopicConfigEntry, ...]


def topic_definitions(
    kafka: Mapping[str, Any], names: Collection[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT
) -> dict[str, TopicDefinition]:
    """The topics with ``names`` that exist, by name; None for all that this client may describe, without Kafka's own.

    :raises KafkaRefusedError: TOPIC_AUTHORIZATION_FAILED, if DESCRIBE or DESCRIBE_CONFIGS on a topic is not granted.
    """

    def attempt(deadline: float) -> list[Message]:
        entries = cluster.described_topics(names, deadline)
        if names is None:
            return [entry for entry in entries if not entry.error_code and not entry.is_internal]
        for entry in entries:
            if entry.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise_for(ApiKey.METADATA, f"topic {entry.name!r}", entry.error_code)
        return [entry for entry in entries if not entry.error_code]

    if names is not None and not names:
        return {}
    with connected(kafka, timeout) as cluster:
        found = {entry.name: entry for entry in cluster.persist(attempt)}
        settings = settings_of(cluster, found)
    return {
        name: TopicDefinition(
            name,
            topic_id_text(entry.topic_id) if entry.topic_id else "",
            len(entry.partitions),
            bool(entry.is_internal),
            settings[name],
        )
        for name, entry in sorted(found.items())
        if name in settings
    }


def settings_of(cluster: ClusterClient, names: Iterable[str]) -> dict[str, tuple[TopicConfigEntry, ...]]:
    """All settings of each topic, in the order of their names; without topics that do not exist.

    :raises KafkaRefusedError: TOPIC_AUTHORIZATION_FAILED if DESCRIBE_CONFIGS is not granted.
    """
    settings: dict[str, tuple[TopicConfigEntry, ...]] = {}
    left = iter(names)
    while some := list(islice(left, _AT_ONCE)):
        call = topic_settings(some)

        def attempt(deadline: float, call: VersionedRequest = call) -> None:
            for result in cluster.ask_any(call, deadline).results:
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue  # it was deleted meanwhile
                raise_for(call.api_key, f"{call.operation} of topic {result.resource_name}", result.error_code)
                settings[result.resource_name] = _entries(result.configs)

        cluster.persist(attempt)
    return settings


def topic_at_creation(
    kafka: Mapping[str, Any],
    name: str,
    *,
    partitions: int,
    replicas: int | None = None,
    config: Mapping[str, str],
    timeout: float = DEFAULT_TIMEOUT,
) -> TopicAtCreation:
    """The topic that ``create_topic`` would make of these arguments. Creates nothing.

    :raises KafkaRefusedError: as ``create_topic``.
    """
    call = topic_creation(name, partitions, replicas or BROKERS_DEFAULT, config, validates=True)
    with connected(kafka, timeout) as cluster:
        (answer,) = cluster.persist(lambda deadline: cluster.ask_any(call, deadline)).topics
        nodes = len(cluster.persist(cluster.nodes))
    require_success(f"topic {name!r} cannot be created", answer)
    replicas = answer.replication_factor if answer.replication_factor > 0 else None
    return TopicAtCreation(nodes, replicas, _entries(answer.configs or ()))


def add_partitions(kafka: Mapping[str, Any], name: str, total: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Add partitions to the topic ``name``, so that it has ``total``.

    :raises KafkaRefusedError: INVALID_PARTITIONS if it has as many already; UNKNOWN_TOPIC_OR_PARTITION and others.
    :raises AnswerLostError: if the broker did not answer: the partitions may have been added.
    """
    with connected(kafka, timeout) as cluster:
        (answer,) = cluster.ask_once(partition_addition(name, total)).results
    require_success(f"no partitions were added to topic {name!r}", answer)


def set_topic_settings(
    kafka: Mapping[str, Any], name: str, settings: Mapping[str, str], *, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Set ``settings`` on the topic ``name``, and leave its others as they are.

    :raises KafkaRefusedError: INVALID_CONFIG, TOPIC_AUTHORIZATION_FAILED (ALTER_CONFIGS) and others.
    """
    call = settings_change(name, settings)
    with connected(kafka, timeout) as cluster:
        (answer,) = cluster.persist(lambda deadline: cluster.ask_any(call, deadline)).responses
    require_success(f"the settings of topic {name!r} were not changed", answer)


def await_partitions(kafka: Mapping[str, Any], name: str, total: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Wait until every broker knows ``total`` partitions of the topic ``name`` with their leaders: brokers learn of
    them later than the controller.

    :raises KafkaUnavailableError: if one does not know them in time.
    """

    def attempt(deadline: float) -> None:
        for endpoint in cluster.brokers(deadline):
            (entry,) = cluster.ask(endpoint, metadata([name]), deadline).topics
            led = [partition for partition in entry.partitions if partition.leader_id >= 0]
            if entry.error_code or len(led) < total:
                raise KafkaUnavailableError(f"topic {name!r}: broker {endpoint} does not know its partitions yet")

    with connected(kafka, timeout) as cluster:
        cluster.persist(attempt)


def require_success(message: str, answer: Message) -> None:
    """Raise KafkaRefusedError with the broker's reason, unless the answer has no error."""
    if answer.error_code:
        reason = f": {answer.error_message.rstrip('.')}" if answer.error_message else ""
        raise KafkaRefusedError(f"{message}{reason}", answer.error_code, error_name(answer.error_code))


def _entries(configs: Iterable[Message]) -> tuple[TopicConfigEntry, ...]:
    entries = [TopicConfigEntry(entry.name, entry.value, entry.config_source == _SET_ON_TOPIC) for entry in configs]
    return tuple(sorted(entries, key=lambda setting: setting.name))
