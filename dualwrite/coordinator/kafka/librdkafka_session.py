"""A librdkafka session, as the transaction coordinator describes it: librdkafka reports neither the session's identity
nor every error."""

from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription
from dualwrite.client.librdkafka.deliveries import Deliveries
from dualwrite.client.librdkafka.errors import is_fenced, is_permanent, is_purged
from dualwrite.client.terms.error_classes import TAKEN_OVER, error_for
from dualwrite.client.terms.transaction_states import ONGOING
from dualwrite.errors import FencedError, KafkaRefusedError, PrepareFailedError
from dualwrite.ids import Anchor, ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode

_OFFSETS = "__consumer_offsets"


class LibrdkafkaSession:
    """The session of one transactional id: one producer id and epoch for many transactions.

    :param control: asks the coordinator, and the partition leaders.
    """

    def __init__(self, control: ControlPlane, transactional_id: str) -> None:
        self.identity: ProducerIdentity | None = None
        self._control = control
        self._transactional_id = transactional_id

    def look_up(self) -> bool:
        """Ask the coordinator for the session's identity; True if a transaction is open."""
        described = self._control.describe_transaction(self._transactional_id)
        self.identity = None if described is None else described.producer
        return described is not None and described.state == ONGOING

    def require_delivered(self, sent: Deliveries) -> None:
        """Refuse to prepare unless every record was acknowledged.

        :raises FencedError: if another producer has taken over.
        :raises KafkaRefusedError: if a record will never be accepted.
        :raises PrepareFailedError: otherwise.
        """
        count = f"of {sent.produced} records of {self._transactional_id} were not acknowledged"
        if sent.failed:
            error = sent.first_error
            if is_purged(error):
                self._described()  # a fenced librdkafka drops queued records without a reason
            if is_fenced(error):
                raise FencedError(f"{sent.failed} {count}: {error.str()}: {TAKEN_OVER}")
            if is_permanent(error):
                raise KafkaRefusedError(
                    f"{sent.failed} {count}: topic {sent.first_topic!r}: {error.str()}", error.code(), error.name()
                )
            raise PrepareFailedError(f"{sent.failed} {count}: {error.str()} ({error.name()})")
        if sent.missing:
            self._described()
            raise PrepareFailedError(f"{sent.missing} {count} in time")

    def require_ongoing(self, sent: Deliveries, *, has_offsets: bool) -> TransactionDescription:
        """The coordinator's description of the open transaction, which has all partitions of ``sent``.

        :raises PrepareFailedError: if the coordinator does not agree.
        :raises KafkaRefusedError: if this client may not see whether the offsets are in it.
        :raises FencedError: if another producer has taken over.
        """
        described = self._described()
        missing = [str(partition) for partition in sorted(sent.partitions - described.partitions)]
        if has_offsets and not _of_offsets(described):
            if described.state == ONGOING and self._control.hides(_OFFSETS):
                operation = (
                    f"transaction of {self._transactional_id}: whether it has the offsets is not shown to this client: "
                    f"grant DESCRIBE on the topic {_OFFSETS}"
                )
                raise error_for(ApiKey.METADATA, operation, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            missing.append(_OFFSETS)
        if described.state != ONGOING or missing:
            absent = f" without {', '.join(missing)}" if missing else ""
            raise PrepareFailedError(
                f"transaction of {self._transactional_id}: {described.state}{absent}, where it should be {ONGOING}"
            )
        return described

    def anchor(self, sent: Deliveries, described: TransactionDescription) -> Anchor:
        """Where the open transaction began. The partition leaders know it if no delivery report has a first offset, as
        with offsets.

        It is the beginning of this transaction: no partition joins a transaction before the previous one's markers are
        written.
        """
        if (reported := sent.anchor()) is not None:
            return reported
        partitions = sent.partitions or _of_offsets(described)
        starts = self._control.current_transaction_start_offsets(partitions, described.producer)
        if not starts:
            raise PrepareFailedError(f"transaction of {self._transactional_id}: no leader knows where it began")
        partition = min(starts)
        return Anchor.of(partition, starts[partition])

    def _described(self) -> TransactionDescription:
        """The coordinator's description of the transactional id, if it still belongs to this producer."""
        description = f"transaction of {self._transactional_id}"
        described = self._control.describe_transaction(self._transactional_id)
        if described is None:
            raise PrepareFailedError(f"{description}: the coordinator does not know it")
        if described.producer != self.identity:
            raise FencedError(
                f"{description}: it belongs to producer {described.producer} now, not to {self.identity}: {TAKEN_OVER}"
            )
        return described


def _of_offsets(described: TransactionDescription) -> frozenset[TopicPartition]:
    """The partitions of the transaction that hold groups' offsets."""
    return frozenset(partition for partition in described.partitions if partition.topic == _OFFSETS)
