"""The requests to coordinators that a producer's verbs send, in the versions that TV2 needs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dualwrite.client.engine.contract import EngineSettings
from dualwrite.client.engine.producer_metadata import GROUP, TRANSACTION, CoordinatorOf
from dualwrite.ids import NO_PRODUCER, TWO_PHASE_TIMEOUT_MS, ProducerIdentity
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.producing import TransactionEnd

_FIRST_WITH_TWO_PHASE = 6
_FIRST_OF_TV2 = 5
"""The lowest versions of EndTxn and of TxnOffsetCommit that TV2 needs."""
_OLDEST_INIT = 4


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


class CoordinatorCall:
    """One request in progress.

    :param what: a description, for errors.
    :param versions: the lowest and the highest version in which it can be sent.
    :param answer: called with the answer, unless its error code is a reason to retry or to give up.
    """

    __slots__ = (
        "answer",
        "api_key",
        "attempts",
        "coordinator",
        "fallback",
        "is_asked",
        "last_code",
        "last_error",
        "message",
        "retry_at",
        "versions",
        "what",
    )

    def __init__(
        self,
        what: str,
        api_key: ApiKey,
        versions: tuple[int, int],
        coordinator: CoordinatorOf,
        message: Message,
        answer: Callable[[Message], None],
    ) -> None:
        self.what = what
        self.api_key = api_key
        self.versions = versions
        self.coordinator = coordinator
        self.message = message
        self.answer = answer
        self.fallback: CoordinatorCall | None = None
        """The request to send instead if the coordinator does not support this one (UNSUPPORTED_VERSION)."""
        self.attempts = 0
        self.is_asked = False
        """True while it is unanswered."""
        self.retry_at = 0.0
        self.last_code = 0
        """The error code of the coordinator's last answer; 0 if there was none."""
        self.last_error = ""

    @property
    def needs_two_phase(self) -> bool:
        """True if it can be sent only to brokers that support KIP-939."""
        return self.api_key is ApiKey.INIT_PRODUCER_ID and self.versions[0] >= _FIRST_WITH_TWO_PHASE

    @property
    def decides(self) -> bool:
        """True if it commits: without an answer, the records may or may not be committed."""
        return self.api_key is ApiKey.END_TXN and self.message.committed


def init_call(settings: EngineSettings, keeps: bool, answer: Callable[[Message], None]) -> CoordinatorCall:
    """InitProducerId. v6 with KIP-939's flags if two-phase commit or keeping a prepared transaction is asked for; else
    a plain one.

    In two-phase commit, every InitProducerId keeps the open transaction, and the producer aborts it next unless it
    wants it. A plain one would abort any open transaction: a copy of it that a broken connection delays could abort a
    transaction that was prepared and decided after it. Apache Kafka 4.4 does not support that yet: there plain is the
    fallback.
    """
    two_phase = settings.two_phase_commit
    needs_flags = two_phase or keeps
    versions = (_FIRST_WITH_TWO_PHASE,) * 2 if needs_flags else (_OLDEST_INIT, _FIRST_WITH_TWO_PHASE - 1)
    coordinator = CoordinatorOf(TRANSACTION, settings.transactional_id)
    what = f"InitProducerId of {settings.transactional_id}"

    def asking(keep_prepared: bool) -> CoordinatorCall:
        message = APIS[ApiKey.INIT_PRODUCER_ID].request(
            transactional_id=settings.transactional_id,
            transaction_timeout_ms=TWO_PHASE_TIMEOUT_MS if two_phase else settings.transaction_timeout_ms,
            producer_id=NO_PRODUCER.producer_id,
            producer_epoch=NO_PRODUCER.epoch,
            enable2_pc=two_phase,
            keep_prepared_txn=keep_prepared,
        )
        return CoordinatorCall(what, ApiKey.INIT_PRODUCER_ID, versions, coordinator, message, answer)

    call = asking(needs_flags)
    if two_phase and not keeps:
        call.fallback = asking(False)
    return call


def end_call(
    settings: EngineSettings, producer: ProducerIdentity, commits: bool, answer: Callable[[Message], None]
) -> CoordinatorCall:
    """EndTxn v5. It may be sent any number of times: a broker that has carried it out gives the same answer again, as
    no other transaction ever uses the identity."""
    message = TransactionEnd(settings.transactional_id, producer.producer_id, producer.epoch, commits)
    what = f"EndTxn ({'commit' if commits else 'abort'}) of {settings.transactional_id}"
    coordinator = CoordinatorOf(TRANSACTION, settings.transactional_id)
    return CoordinatorCall(what, ApiKey.END_TXN, (_FIRST_OF_TV2,) * 2, coordinator, message, answer)


def offsets_call(
    settings: EngineSettings,
    producer: ProducerIdentity,
    offsets: Sequence[CommittedOffset],
    member: GroupMember,
    answer: Callable[[Message], None],
) -> CoordinatorCall:
    """TxnOffsetCommit v5, which makes the offsets part of the transaction without AddOffsetsToTxn."""
    request = APIS[ApiKey.TXN_OFFSET_COMMIT].request
    topics: dict[str, list[Message]] = {}
    topic_class = request.TxnOffsetCommitRequestTopic
    for each in offsets:
        topics.setdefault(each.topic, []).append(
            topic_class.TxnOffsetCommitRequestPartition(
                partition_index=each.partition,
                committed_offset=each.offset,
                committed_leader_epoch=each.leader_epoch,
                committed_metadata=each.metadata,
            )
        )
    message = request(
        transactional_id=settings.transactional_id,
        group_id=member.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=[topic_class(name=name, partitions=partitions) for name, partitions in topics.items()],
    )
    what = f"TxnOffsetCommit of group {member.group_id} in {settings.transactional_id}"
    coordinator = CoordinatorOf(GROUP, member.group_id)
    return CoordinatorCall(what, ApiKey.TXN_OFFSET_COMMIT, (_FIRST_OF_TV2,) * 2, coordinator, message, answer)


def code_of(api_key: ApiKey, answer: Message) -> int:
    """The error code that decides about an answer; with several partitions, the first error."""
    if api_key is not ApiKey.TXN_OFFSET_COMMIT:
        return int(answer.error_code)
    codes = (entry.error_code for topic in answer.topics for entry in topic.partitions)
    return next((code for code in codes if code), int(ErrorCode.NONE))


def place_of(api_key: ApiKey, answer: Message) -> str:
    """The partition to which an answer's error code belongs; empty if it is not about a single one."""
    if api_key is not ApiKey.TXN_OFFSET_COMMIT:
        return ""
    wrong = (
        f"{topic.name}-{entry.partition_index}"
        for topic in answer.topics
        for entry in topic.partitions
        if entry.error_code
    )
    return next(wrong, "")
