"""Topics: list, create, describe and delete them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dualwrite.admin.arguments import require_config, require_integer, require_text, require_texts
from dualwrite.admin.connecting import DEFAULT_TIMEOUT, connected, log_ends, topic_metadata, with_leader
from dualwrite.admin.definitions import require_success, settings_of
from dualwrite.admin.open_transactions import open_transactions
from dualwrite.admin.views import PartitionDetails, TopicConfigEntry, TopicDetails, TopicListing
from dualwrite.client.admin.cluster_client import ClusterClient, topic_id_text
from dualwrite.client.protocol.topic_requests import (
    BROKERS_DEFAULT,
    partition_sizes,
    topic_creation,
    topic_deletion,
)
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import InputError, KafkaRefusedError
from dualwrite.ids import TopicPartition, is_legal_topic
from dualwrite.wire.apis import Message
from dualwrite.wire.error_codes import ErrorCode

_NOT_GRANTED = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})


def list_topics(
    kafka: Mapping[str, Any], *, internal: bool = False, timeout: float = DEFAULT_TIMEOUT
) -> list[TopicListing]:
    """The topics that this client may describe, by name.

    :param internal: True to list Kafka's own topics, too, such as ``__consumer_offsets``.
    """
    with connected(kafka, timeout) as cluster:
        entries = cluster.persist(lambda deadline: cluster.described_topics(None, deadline))
    listed = [
        TopicListing(
            entry.name,
            len(entry.partitions),
            max((len(partition.replica_nodes) for partition in entry.partitions), default=0),
            bool(entry.is_internal),
        )
        for entry in entries
        if not entry.error_code and (internal or not entry.is_internal)
    ]
    return sorted(listed, key=lambda topic: topic.name)


def create_topic(
    kafka: Mapping[str, Any],
    name: str,
    *,
    partitions: int | None = None,
    replicas: int | None = None,
    config: Mapping[str, str] | None = None,
    if_not_exists: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
) -> bool:
    """Create the topic ``name``. Returns True if it was created.

    :param partitions: how many; None for the broker's ``num.partitions``.
    :param replicas: the replication factor; None for the broker's ``default.replication.factor``.
    :param config: settings of the topic by Kafka's names.
    :param if_not_exists: return False if the topic exists. It is not compared with the other arguments.
    :raises InputError: if ``name`` is not a topic's name, or a number is not positive or too large.
    :raises KafkaRefusedError: TOPIC_ALREADY_EXISTS, INVALID_CONFIG and others. The message has the broker's reason.
    :raises AnswerLostError: if the broker did not answer: the topic may have been created.
    """
    require_text(name=name)
    require_integer(partitions=partitions, replicas=replicas)
    require_config(config)
    if not is_legal_topic(name):
        raise InputError(f"{name!r} is not a topic's name: use 1 to 249 letters, digits, '.', '_' and '-'")
    for number, what, most in ((partitions, "partitions", 2**31 - 1), (replicas, "replicas", 2**15 - 1)):
        if number is not None and not 1 <= number <= most:  # as many as the request can say
            raise InputError(f"{number} {what}: use {'1 or more' if number < 1 else f'{most} at most'}")
    call = topic_creation(name, partitions or BROKERS_DEFAULT, replicas or BROKERS_DEFAULT, config)
    with connected(kafka, timeout) as cluster:
        (answer,) = cluster.ask_once(call).topics
    if if_not_exists and answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    require_success(f"topic {name!r} was not created", answer)
    return True


def delete_topic(
    kafka: Mapping[str, Any], name: str, *, if_exists: bool = False, timeout: float = DEFAULT_TIMEOUT
) -> bool:
    """Delete the topic ``name`` with its records. Returns True if it was deleted.

    :param if_exists: return False if there is no such topic.
    :raises KafkaRefusedError: UNKNOWN_TOPIC_OR_PARTITION and others.
    :raises AnswerLostError: if the broker did not answer: the topic may have been deleted.
    """
    require_text(name=name)
    with connected(kafka, timeout) as cluster:
        (answer,) = cluster.ask_once(topic_deletion(name)).responses
    if if_exists and answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    require_success(f"topic {name!r} was not deleted", answer)
    return True


def missing_topics(kafka: Mapping[str, Any], names: Collection[str], *, timeout: float = DEFAULT_TIMEOUT) -> list[str]:
    """Those of ``names`` that are no topics, or that the cluster hides from this client."""
    require_texts(names=names)
    with connected(kafka, timeout) as cluster:
        entries = cluster.persist(lambda deadline: cluster.described_topics(names, deadline)) if names else []
    known = {entry.name for entry in entries if not entry.error_code}
    return [name for name in names if name not in known]


def describe_topic(kafka: Mapping[str, Any], name: str, *, timeout: float = DEFAULT_TIMEOUT) -> TopicDetails:
    """A topic with its settings, the offsets and the sizes of its partitions, and its open transactions.

    Parts that this client has no right to see are None; partitions without a leader have no offsets. The offsets are
    read one after the other, so those of a busy partition are not from one moment.

    :raises InputError: if ``name`` is not a topic's name.
    :raises KafkaRefusedError: UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED.
    """
    require_text(name=name)
    with connected(kafka, timeout) as cluster:
        entry = topic_metadata(cluster, name)
        sizes = _sizes(cluster, name, entry.partitions)
        partitions = _partitions(cluster, name, entry.partitions)
        return TopicDetails(
            name,
            topic_id_text(entry.topic_id) if entry.topic_id else "",
            bool(entry.is_internal),
            tuple(replace(partition, size=sizes.get(partition.partition)) for partition in partitions),
            _settings(cluster, name),
        )


def describe_partitions(
    kafka: Mapping[str, Any], name: str, *, timeout: float = DEFAULT_TIMEOUT
) -> list[PartitionDetails]:
    """As :func:`describe_topic`: the partitions alone, without their sizes."""
    require_text(name=name)
    with connected(kafka, timeout) as cluster:
        return _partitions(cluster, name, topic_metadata(cluster, name).partitions)


def _partitions(cluster: ClusterClient, name: str, entries: Iterable[Message]) -> list[PartitionDetails]:
    by_index = {TopicPartition(name, entry.partition_index): entry for entry in entries}
    led = with_leader(cluster, by_index)
    begun = open_transactions(cluster, led)  # before the ends: one that begins meanwhile is behind the stable offset
    ends = log_ends(cluster, led)
    return [
        PartitionDetails(
            partition=partition.partition,
            leader=entry.leader_id if partition in led else None,
            replicas=tuple(entry.replica_nodes),
            in_sync=tuple(entry.isr_nodes),
            earliest=ends.earliest.get(partition),
            last_stable_offset=ends.stable.get(partition),
            high_watermark=ends.high.get(partition),
            open_transactions=begun.get(partition),
        )
        for partition, entry in sorted(by_index.items())
    ]


def _sizes(cluster: ClusterClient, name: str, entries: Iterable[Message]) -> dict[int, int]:
    """Bytes of each partition's log at its leader; empty if they may not be described."""
    led: dict[int, list[int]] = {}
    for entry in entries:
        led.setdefault(entry.leader_id, []).append(entry.partition_index)

    def attempt(deadline: float) -> dict[int, int]:
        sizes = {}
        nodes = cluster.nodes(deadline)
        for node in sorted(led.keys() & nodes.keys()):
            call = partition_sizes(name, led[node])
            answer = cluster.ask(nodes[node], call, deadline)
            raise_for(call.api_key, call.operation, answer.error_code)
            for directory in answer.results:
                raise_for(call.api_key, call.operation, directory.error_code)
                for topic in directory.topics:
                    sizes.update({part.partition_index: part.partition_size for part in topic.partitions})
        return sizes

    try:
        return cluster.persist(attempt)
    except KafkaRefusedError as error:
        if error.code not in _NOT_GRANTED:
            raise
        return {}


def _settings(cluster: ClusterClient, name: str) -> tuple[TopicConfigEntry, ...] | None:
    try:
        return settings_of(cluster, [name]).get(name)
    except KafkaRefusedError as error:
        if error.code not in _NOT_GRANTED:
            raise
        return None
