"""The requests to coordinators that a producer's verbs send, in the versions that TV2 needs."""

from collections.abc import Callable, Sequence

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.protocol.requests import (
    GROUP,
    TRANSACTION,
    CommittedOffset,
    CoordinatorOf,
    GroupMember,
    VersionedRequest,
    end_txn,
    init_producer_id,
    txn_offset_commit,
)
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import ApiKey, Message


class CoordinatorRequest:
    """One request in progress.

    :param answer: called with the answer, unless its error code is a reason to retry or to give up.
    """

    __slots__ = (
        "answer",
        "attempts",
        "coordinator",
        "fallback",
        "is_asked",
        "last_error",
        "request",
        "retry_at",
        "unknown_partition",
    )

    def __init__(
        self, request: VersionedRequest, coordinator: CoordinatorOf, answer: Callable[[Message], None]
    ) -> None:
        self.request = request
        self.coordinator = coordinator
        self.answer = answer
        self.fallback: CoordinatorRequest | None = None
        """The request to send instead if the coordinator does not support this one (UNSUPPORTED_VERSION)."""
        self.attempts = 0
        self.is_asked = False
        """True while it is unanswered."""
        self.retry_at = 0.0
        self.last_error = ""
        """Why the last attempt has failed; empty if none has."""
        self.unknown_partition = ""
        """The partition that the brokers did not know at the last attempt; empty if it was not refused for that."""

    @property
    def decides(self) -> bool:
        """True if it commits: without an answer, the records may or may not be committed."""
        return self.request.api_key is ApiKey.END_TXN and self.request.message.committed


def init_request(settings: ProducerSettings, keeps: bool, answer: Callable[[Message], None]) -> CoordinatorRequest:
    """InitProducerId. v6 with KIP-939's flags if two-phase commit or keeping a prepared transaction is asked for; else
    a plain one.

    In two-phase commit the request always sets keepPreparedTxn, and the producer then aborts by EndTxn if needed. A
    request without that flag would abort any open transaction: a delayed copy of it could abort a transaction that was
    prepared and decided later. Apache Kafka 4.4 does not support the flag: there the fallback is a plain request.
    """
    two_phase = settings.two_phase_commit

    def asking(keep_prepared: bool) -> CoordinatorRequest:
        request = init_producer_id(
            settings.transactional_id,
            settings.transaction_timeout_ms,
            two_phase_commit=two_phase,
            keep_prepared_txn=keep_prepared,
        )
        return CoordinatorRequest(request, CoordinatorOf(TRANSACTION, settings.transactional_id), answer)

    call = asking(two_phase or keeps)
    if two_phase and not keeps:
        call.fallback = asking(False)
    return call


def end_request(
    settings: ProducerSettings, producer: ProducerIdentity, commits: bool, answer: Callable[[Message], None]
) -> CoordinatorRequest:
    """EndTxn v5. It may be sent any number of times: a broker that has carried it out gives the same answer again, as
    no other transaction ever uses the identity."""
    request = end_txn(settings.transactional_id, producer, commits, bumps_epoch=True)
    return CoordinatorRequest(request, CoordinatorOf(TRANSACTION, settings.transactional_id), answer)


def offsets_request(
    settings: ProducerSettings,
    producer: ProducerIdentity,
    offsets: Sequence[CommittedOffset],
    member: GroupMember,
    answer: Callable[[Message], None],
) -> CoordinatorRequest:
    """TxnOffsetCommit at the group's coordinator."""
    request = txn_offset_commit(settings.transactional_id, producer, offsets, member)
    return CoordinatorRequest(request, CoordinatorOf(GROUP, member.group_id), answer)
