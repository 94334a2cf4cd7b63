"""The requests of this client, each built in one place with the versions in which it may be sent, and their answers.

The engine and the control plane both use them. Produce alone is built where batches are (``engine/sender.py``).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import error_for
from dualwrite.client.terms.versions import NoCommonVersionError, Versions
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.producing import TransactionEnd

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators (FindCoordinator's key types)."""
TWO_PHASE_VERSION = 6
"""The version of InitProducerId with KIP-939's flags."""
EARLIEST, LATEST = -2, -1
"""Timestamps of ListOffsets: the log's first record, and its end."""

_FIRST_WITH_AN_EXPECTED_IDENTITY = 3
_FIRST_OF_TV2 = 5
"""The lowest versions of InitProducerId for KIP-360, and of EndTxn and TxnOffsetCommit for TV2."""
_FIRST_WITH_MEMBERS, _LAST_OF_TV1 = 3, 4
"""The lowest version of TxnOffsetCommit with a member (KIP-447), and the highest of it and AddOffsetsToTxn before
TV2."""
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_BROKER = 4
"""Kafka's ConfigResource.Type of a broker."""
_NO_SESSION = -1


class VersionedRequest(NamedTuple):
    """One request and its versions.

    :param operation: the request in words, for errors.
    :param floor: the lowest version in which it may be sent.
    :param cap: the highest; None for any that both sides know.
    :param repeatable: True if carrying it out twice is the same as once, so that it may be sent again after a lost
        answer.
    """

    operation: str
    api_key: ApiKey
    message: Message
    floor: int = 0
    cap: int | None = None
    repeatable: bool = True

    @property
    def needs_two_phase(self) -> bool:
        """True if it can be sent only to brokers that support KIP-939."""
        return self.api_key is ApiKey.INIT_PRODUCER_ID and self.floor >= TWO_PHASE_VERSION

    def version_at(self, endpoint: Endpoint, versions: Versions) -> int:
        """The version in which the request is sent to ``endpoint``, which offers ``versions``.

        :raises KafkaRefusedError: UNSUPPORTED_VERSION if there is none.
        :raises TwoPhaseCommitUnavailableError: the same, if two-phase commit was requested.
        """
        try:
            return versions.of(self.api_key, self.floor, self.cap)
        except NoCommonVersionError as error:
            operation, code = f"{self.operation}: broker {endpoint}: {error}", ErrorCode.UNSUPPORTED_VERSION
            raise error_for(self.api_key, operation, code, two_phase=self.needs_two_phase) from error


class CoordinatorOf(NamedTuple):
    """A coordinator: of the transactional id or of the group that ``key`` names."""

    kind: int
    key: str


class InitializedProducer(NamedTuple):
    """The answer to InitProducerId.

    :param producer: the new identity; every earlier one of the transactional id is fenced.
    :param ongoing: the identity of the transaction that was kept; None if no transaction is open.
    """

    producer: ProducerIdentity
    ongoing: ProducerIdentity | None


class CommittedOffset(NamedTuple):
    """The offset from which a consumer group goes on reading a partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupMember(NamedTuple):
    """The group member for which offsets are committed (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


# --- the cluster


def find_coordinator(of: CoordinatorOf) -> VersionedRequest:
    """FindCoordinator. Later versions look up several keys at once."""
    message = APIS[ApiKey.FIND_COORDINATOR].request(key=of.key, key_type=of.kind)
    return VersionedRequest(f"FindCoordinator of {of.key}", ApiKey.FIND_COORDINATOR, message, floor=1, cap=3)


def coordinator_in(answer: Message) -> Endpoint:
    """The coordinator that an answer to FindCoordinator names."""
    return Endpoint(answer.host, answer.port)


def metadata(topics: Iterable[str] | None, *, creates: bool = False, with_ids: bool = False) -> VersionedRequest:
    """Metadata of ``topics``; None for all topics.

    :param creates: True to let the broker create a topic that is missing.
    :param with_ids: True to ask for topic ids too, which a broker has from v10 on.
    """
    request = APIS[ApiKey.METADATA].request
    named = None if topics is None else [request.MetadataRequestTopic(name=topic) for topic in topics]
    message = request(topics=named, allow_auto_topic_creation=creates)
    return VersionedRequest("Metadata", ApiKey.METADATA, message, floor=4, cap=12 if with_ids else 9)


def nodes_in(brokers: Iterable[Message]) -> dict[int, Endpoint]:
    """The addresses of brokers in an answer, by node id."""
    return {broker.node_id: Endpoint(broker.host, broker.port) for broker in brokers}


# --- a transaction


def init_producer_id(
    transactional_id: str,
    transaction_timeout_ms: int,
    *,
    two_phase_commit: bool,
    keep_prepared_txn: bool,
    expected: ProducerIdentity = NO_PRODUCER,
) -> VersionedRequest:
    """InitProducerId, in v6 if it has one of KIP-939's flags, and plain otherwise.

    :param expected: the identity that the caller holds (KIP-360).
    """
    message = APIS[ApiKey.INIT_PRODUCER_ID].request(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        producer_id=expected.producer_id,
        producer_epoch=expected.epoch,
        enable2_pc=two_phase_commit,
        keep_prepared_txn=keep_prepared_txn,
    )
    if two_phase_commit or keep_prepared_txn:
        versions = TWO_PHASE_VERSION, TWO_PHASE_VERSION
    else:
        versions = _FIRST_WITH_AN_EXPECTED_IDENTITY if expected else 0, TWO_PHASE_VERSION - 1
    return VersionedRequest(f"InitProducerId of {transactional_id}", ApiKey.INIT_PRODUCER_ID, message, *versions)


def initialized_in(answer: Message) -> InitializedProducer:
    """The identities in an answer to InitProducerId."""
    ongoing = ProducerIdentity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
    return InitializedProducer(identity_in(answer), ongoing or None)


def identity_in(answer: Message) -> ProducerIdentity:
    """The identity in an answer to InitProducerId, EndTxn or DescribeTransactions."""
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def end_txn(
    transactional_id: str, producer: ProducerIdentity, committed: bool, *, bumps_epoch: bool, repeatable: bool = True
) -> VersionedRequest:
    """EndTxn.

    :param bumps_epoch: True for v5 (KIP-890 part 2), which fences ``producer``; False for an older version, which
        leaves the identity as it is.
    :param repeatable: as in :class:`VersionedRequest`: True only if no transaction will ever begin under ``producer``.
    """
    operation = f"EndTxn ({'commit' if committed else 'abort'}) of {transactional_id}"
    fields = transactional_id, producer.producer_id, producer.epoch, committed
    if bumps_epoch:
        return VersionedRequest(
            operation, ApiKey.END_TXN, TransactionEnd(*fields), _FIRST_OF_TV2, _FIRST_OF_TV2, repeatable
        )
    names = "transactional_id", "producer_id", "producer_epoch", "committed"
    message = APIS[ApiKey.END_TXN].request(**dict(zip(names, fields, strict=True)))
    return VersionedRequest(operation, ApiKey.END_TXN, message, 0, _FIRST_OF_TV2 - 1, repeatable)


def topics_of(
    offsets: Sequence[CommittedOffset], topic_class: type[Message], partition_class: type[Message]
) -> list[Message]:
    """``offsets`` by topic, as OffsetCommit and TxnOffsetCommit carry them.

    :param topic_class: of a topic in the request, and ``partition_class`` of a partition in it.
    """
    topics: dict[str, list[Message]] = {}
    for committed in offsets:
        topics.setdefault(committed.topic, []).append(
            partition_class(
                partition_index=committed.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return [topic_class(name=name, partitions=partitions) for name, partitions in topics.items()]


def add_offsets_to_txn(transactional_id: str, producer: ProducerIdentity, group: str) -> VersionedRequest:
    """AddOffsetsToTxn: the offsets of ``group`` become a part of the transaction, as before TV2."""
    message = APIS[ApiKey.ADD_OFFSETS_TO_TXN].request(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    operation = f"AddOffsetsToTxn of group {group} to {transactional_id}"
    return VersionedRequest(operation, ApiKey.ADD_OFFSETS_TO_TXN, message, cap=_LAST_OF_TV1)


def txn_offset_commit(
    transactional_id: str,
    producer: ProducerIdentity,
    offsets: Sequence[CommittedOffset],
    member: GroupMember,
    *,
    joins: bool = True,
) -> VersionedRequest:
    """TxnOffsetCommit.

    :param joins: True for v5, which makes the offsets part of the transaction; False after AddOffsetsToTxn.
    """
    request = APIS[ApiKey.TXN_OFFSET_COMMIT].request
    topic_class = request.TxnOffsetCommitRequestTopic
    message = request(
        transactional_id=transactional_id,
        group_id=member.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=topics_of(offsets, topic_class, topic_class.TxnOffsetCommitRequestPartition),
    )
    operation = f"TxnOffsetCommit of group {member.group_id} in {transactional_id}"
    versions = (_FIRST_OF_TV2, _FIRST_OF_TV2) if joins else (_FIRST_WITH_MEMBERS, _LAST_OF_TV1)
    return VersionedRequest(operation, ApiKey.TXN_OFFSET_COMMIT, message, *versions)


def code_in(api_key: ApiKey, answer: Message) -> tuple[int, str]:
    """The error code that decides about a coordinator's answer, and the partition to which it belongs; empty if it is
    about no single one. With several partitions, the first error decides."""
    if api_key is not ApiKey.TXN_OFFSET_COMMIT:
        return int(answer.error_code), ""
    for topic in answer.topics:
        for entry in topic.partitions:
            if entry.error_code:
                return int(entry.error_code), f"{topic.name}-{entry.partition_index}"
    return int(ErrorCode.NONE), ""


# --- the state of transactions


def describe_transactions(transactional_id: str) -> VersionedRequest:
    """DescribeTransactions of one transactional id."""
    message = APIS[ApiKey.DESCRIBE_TRANSACTIONS].request(transactional_ids=[transactional_id])
    return VersionedRequest(f"DescribeTransactions of {transactional_id}", ApiKey.DESCRIBE_TRANSACTIONS, message)


def list_transactions(producer_ids: Iterable[int] = ()) -> VersionedRequest:
    """ListTransactions: all that the broker coordinates.

    :param producer_ids: only those of these producers; of all if there is none.
    """
    message = APIS[ApiKey.LIST_TRANSACTIONS].request(state_filters=[], producer_id_filters=list(producer_ids))
    return VersionedRequest("ListTransactions", ApiKey.LIST_TRANSACTIONS, message)


def describe_producers(partitions: Iterable[TopicPartition]) -> VersionedRequest:
    """DescribeProducers of partitions that the broker leads."""
    request = APIS[ApiKey.DESCRIBE_PRODUCERS].request
    topics = [request.TopicRequest(name=name, partition_indexes=each) for name, each in by_topic(partitions).items()]
    return VersionedRequest("DescribeProducers", ApiKey.DESCRIBE_PRODUCERS, request(topics=topics))


# --- the log


def list_offsets(partitions: Iterable[TopicPartition], timestamp: int, *, committed: bool = False) -> VersionedRequest:
    """ListOffsets of partitions that the broker leads. v10 and later add nothing that is needed here.

    :param timestamp: EARLIEST or LATEST; or milliseconds since the epoch, for the first record that is not older.
    :param committed: True for the end that a read_committed consumer sees, which a broker tells from v2 on.
    """
    request = APIS[ApiKey.LIST_OFFSETS].request
    topic = request.ListOffsetsTopic
    topics = [
        topic(
            name=name,
            partitions=[
                topic.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
                for index in indexes
            ],
        )
        for name, indexes in by_topic(partitions).items()
    ]
    message = request(replica_id=-1, isolation_level=_isolation(committed), topics=topics)
    return VersionedRequest("ListOffsets", ApiKey.LIST_OFFSETS, message, floor=2 if committed else 1, cap=9)


def fetch(partition: TopicPartition, offset: int, *, committed: bool, most: int) -> VersionedRequest:
    """Fetch of at most ``most`` bytes, from ``offset`` on, without a wait. Later versions name topics by id.

    :param committed: True to read as a read_committed consumer.
    """
    request = APIS[ApiKey.FETCH].request
    entry = request.FetchTopic.FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=most
    )
    message = request(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=most,
        isolation_level=_isolation(committed),
        session_epoch=_NO_SESSION,
        topics=[request.FetchTopic(topic=partition.topic, partitions=[entry])],
        forgotten_topics_data=[],
    )
    return VersionedRequest("Fetch", ApiKey.FETCH, message, floor=4, cap=12)


# --- a broker


def describe_configs(node: int, names: Iterable[str]) -> VersionedRequest:
    """DescribeConfigs of the broker ``node``: its settings of these names."""
    request = APIS[ApiKey.DESCRIBE_CONFIGS].request
    resource = request.DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(node), configuration_keys=sorted(names)
    )
    message = request(resources=[resource], include_synonyms=False, include_documentation=False)
    return VersionedRequest(f"DescribeConfigs of broker {node}", ApiKey.DESCRIBE_CONFIGS, message, floor=1)


def describe_log_dirs(node: int) -> VersionedRequest:
    """DescribeLogDirs of the broker ``node``, without its partitions."""
    message = APIS[ApiKey.DESCRIBE_LOG_DIRS].request(topics=[])
    return VersionedRequest(f"DescribeLogDirs of broker {node}", ApiKey.DESCRIBE_LOG_DIRS, message, floor=1)


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """The indexes of ``partitions`` by topic, as requests name them."""
    indexes: dict[str, list[int]] = {}
    for partition in partitions:
        indexes.setdefault(partition.topic, []).append(partition.partition)
    return indexes


def _isolation(committed: bool) -> int:
    return _READ_COMMITTED if committed else _READ_UNCOMMITTED
