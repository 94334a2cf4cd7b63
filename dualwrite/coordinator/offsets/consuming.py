"""Consume, transform, dual-write: how far a consumer has read is part of the unit of work that its records are used in.

Either in the Kafka transaction, under the group's generation (KIP-447), or in the database, where a row that another
member has moved on is the fence. What the application must not do between the two is kept in positions.py.
"""

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine

from dualwrite.client.engine.coordinator_calls import GroupMember
from dualwrite.client.producer.arguments import member_of
from dualwrite.coordinator.offsets.consumers import (
    KafkaConsumer,
    OffsetReset,
    assign,
    beginnings,
    go_back,
    place_of,
    require_consumer,
    unwrapped,
)
from dualwrite.coordinator.rules.positions import Consumer, Positions
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.offset_table import OffsetTable, StoredOffset
from dualwrite.coordinator.unit.driver import BlockingDriver
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError, KafkaRefusedError, RebalancedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

NOTHING_READ = -1001
"""The offset of a position before anything was read: librdkafka's OFFSET_INVALID."""

_MOVED = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""With which a group coordinator refuses the offsets of who is not its member, or not any more."""


class Consuming:
    """What a DualWrite knows of the consumers whose records its units of work use.

    Belongs to one process, as its consumers do.

    :param worker: what calls: a thread, or a task.
    """

    def __init__(
        self, engine: Engine, store: SqlDecisionStore, worker: Callable[[], object] = threading.current_thread
    ) -> None:
        self.table = OffsetTable(engine, store)
        self.positions = Positions()
        self.worker = worker
        self._has_warned = False

    def unit(self) -> "UnitOffsets":
        """The offsets of a unit of work that begins here."""
        return UnitOffsets(self, self.worker())

    @contextmanager
    def failures_count(self) -> Iterator[None]:
        """What leaves the block as an error is a unit of work that has failed for good."""
        try:
            yield
        except BaseException:
            self.positions.failed(self.worker())
            raise

    def seek_to_stored(
        self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, auto_offset_reset: OffsetReset
    ) -> None:
        """See DualWrite.seek_to_stored."""
        _require_seekable(consumer, auto_offset_reset)
        try:
            self._seek_to_stored(consumer, partitions, auto_offset_reset)
        except BaseException:
            # librdkafka goes on after a callback that raised, and reads from wherever it likes.
            self.positions.forget(_identity(consumer))
            raise

    def _seek_to_stored(self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, reset: OffsetReset) -> None:
        member = _member(consumer)
        wanted = _checked(consumer.assignment() if partitions is None else partitions, "partitions")
        stored = self._stored(consumer, member.group_id, wanted, reset)
        starts = {place_of(each): stored[place_of(each)].offset for each in wanted}
        self._put(consumer, _known_as(consumer, member), wanted, starts, is_assigned=partitions is None)

    def seek_to_committed(
        self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, auto_offset_reset: OffsetReset
    ) -> None:
        """See DualWrite.seek_to_committed."""
        _require_seekable(consumer, auto_offset_reset)
        try:
            self._seek_to_committed(consumer, partitions, auto_offset_reset)
        except BaseException:
            if partitions is not None:  # as above; without an assignment it is where it was, and tries again
                self.positions.forget(_identity(consumer))
            raise

    def _seek_to_committed(self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, reset: OffsetReset) -> None:
        known = _known_as(consumer, _member(consumer))
        wanted = _checked(consumer.assignment() if partitions is None else partitions, "partitions")
        done = self.positions.done(known)
        # The last unit of work may have happened in the database, and its Kafka side be on its way.
        starts = {
            place: max(offset, done.get(place, 0)) for place, offset in beginnings(consumer, wanted, reset).items()
        }
        self._put(consumer, known, wanted, starts, is_assigned=partitions is None)

    def warn_unless_put(self, known: Consumer, given: Iterable[Any]) -> None:
        """Say once what cannot be seen from here: librdkafka may go back by itself, and its positions do not tell."""
        if not self._has_warned and not _offsets_of(given).keys() <= self.positions.done(known).keys():
            self._has_warned = True
            logger.warning(
                "a consumer was assigned partitions without on_assign=dw.seek_to_committed: librdkafka may hand out "
                "records again that its group has used; see docs/consuming.md"
            )

    def _put(
        self,
        consumer: KafkaConsumer,
        known: Consumer,
        wanted: list[Any],
        starts: Mapping[TopicPartition, int],
        *,
        is_assigned: bool,
    ) -> None:
        """Let ``consumer`` read ``wanted`` from ``starts``.

        :param is_assigned: it has them already, and no others.
        """
        for each in wanted:
            each.offset = starts[place_of(each)]
        if is_assigned:
            go_back(consumer, wanted)
        is_whole = is_assigned or assign(consumer, wanted)
        worker = self.worker() if is_assigned else None  # a callback's is whatever polls
        self.positions.sought(known, starts, worker, is_whole=is_whole)

    def _stored(
        self, consumer: KafkaConsumer, group: str, wanted: Iterable[Any], reset: OffsetReset
    ) -> dict[TopicPartition, StoredOffset]:
        """What is stored of ``wanted``. A partition that is new to the group gets its row now, before the first record
        is read, so that a unit of work always has one to compare with."""
        stored = self.table.read(group)
        missing = [each for each in wanted if place_of(each) not in stored]
        if not missing:
            return stored
        for place, offset in beginnings(consumer, missing, reset).items():
            self.table.begin(group, place, offset)
        return self.table.read(group)


class UnitOffsets:
    """The offsets of one unit of work."""

    def __init__(self, consuming: Consuming, worker: object) -> None:
        self._consuming = consuming
        self._worker = weakref.ref(worker)  # a task that is collected lets go of its unit
        self._claimed: dict[Consumer, dict[TopicPartition, int]] = {}
        self._stored: dict[tuple[str, TopicPartition], int] = {}

    def send(self, driver: BlockingDriver, consumer: KafkaConsumer, offsets: Iterable[Any] | None) -> None:
        """See Transaction.send_offsets."""
        driver.require_user_code()
        said = _checked_offsets(consumer, offsets)
        with driver.dooming():
            given = _read_so_far(consumer, said)
            if not given:
                return
            metadata = consumer.consumer_group_metadata()
            member = member_of(metadata)
            if member.generation_id < 0 or not member.member_id:
                # Kafka takes such offsets unseen, for clients from before KIP-447. A consumer that was thrown out of
                # its group is just that, as soon as its heartbeat has been told so.
                raise RebalancedError(
                    f"the consumer is no member of group {member.group_id!r}, or not any more: subscribe() makes it "
                    "one; after a rebalance call seek_to_committed(consumer), and poll again. For partitions that are "
                    "assigned by hand use store_offsets()"
                )
            known = _known_as(consumer, member)
            self._consuming.warn_unless_put(known, given)
            self._claim(known, given, "seek_to_committed")
            try:
                driver.produce(lambda participant: participant.send_offsets_to_transaction(given, metadata))
            except KafkaRefusedError as error:
                if error.code not in _MOVED:
                    raise
                raise RebalancedError(
                    f"group {member.group_id!r} has given this consumer's partitions to another member ({error.name}): "
                    "the unit of work is rolled back; call seek_to_committed(consumer), and poll again"
                ) from error

    def store(self, driver: BlockingDriver, consumer: KafkaConsumer, offsets: Iterable[Any] | None) -> None:
        """See Transaction.store_offsets."""
        connection = driver.connection
        if connection.in_nested_transaction():
            raise InvalidTransactionStateError("store_offsets(): a savepoint may be rolled back alone: call it outside")
        said = _checked_offsets(consumer, offsets)
        with driver.dooming():
            given = _read_so_far(consumer, said)
            if not given:
                return
            member = _member(consumer)
            group, known = member.group_id, _known_as(consumer, member)
            places = _offsets_of(given)
            within = {place: offset for (name, place), offset in self._stored.items() if name == group}
            moves = self._consuming.positions.moves(known, places, within)
            self._claim(known, given, "seek_to_stored")
            if moves:
                epochs = {place_of(each): epoch for each in given if (epoch := _leader_epoch(each)) is not None}
                self._consuming.table.move(connection, group, moves, epochs)
        self._stored.update({(group, move.partition): move.offset for move in moves})

    def ended(self, *, succeeded: bool) -> None:
        """The unit of work has ended."""
        positions = self._consuming.positions
        if not succeeded:
            positions.failed(self._worker())
            return
        for consumer, offsets in self._claimed.items():
            positions.committed(consumer, offsets)

    def _claim(self, known: Consumer, given: Iterable[Any], remedy: str) -> None:
        offsets = _offsets_of(given)
        self._consuming.positions.claim(known, offsets, self._worker() or self._consuming.worker(), remedy)
        self._claimed.setdefault(known, {}).update(offsets)


def _require_seekable(consumer: object, auto_offset_reset: str) -> None:
    require_consumer(consumer)
    if auto_offset_reset not in ("earliest", "latest"):
        raise ConfigurationError(f"auto_offset_reset={auto_offset_reset!r}: use 'earliest' or 'latest'")


def _member(consumer: KafkaConsumer) -> GroupMember:
    return member_of(consumer.consumer_group_metadata())


def _identity(consumer: KafkaConsumer) -> int:
    return id(unwrapped(consumer))


def _known_as(consumer: KafkaConsumer, member: GroupMember) -> Consumer:
    return Consumer(_identity(consumer), member.member_id or None, member.group_instance_id is not None)


def _offsets_of(given: Iterable[Any]) -> dict[TopicPartition, int]:
    return {place_of(each): each.offset for each in given}


def _leader_epoch(position: Any) -> int | None:
    epoch = getattr(position, "leader_epoch", None)
    return epoch if isinstance(epoch, int) and epoch >= 0 else None


def _checked_offsets(consumer: KafkaConsumer, offsets: Iterable[Any] | None) -> list[Any] | None:
    """What the application says, if it can be meant; the unit of work goes on if not."""
    require_consumer(consumer)
    given = None if offsets is None else _checked(offsets, "offsets")
    for each in given or ():
        if each.offset < 0 and each.offset != NOTHING_READ:
            raise ValueError(f"offsets: {place_of(each)} at {each.offset}: give the number of the next record to read")
    return given


def _read_so_far(consumer: KafkaConsumer, offsets: list[Any] | None) -> list[Any]:
    """``offsets``, or the positions of all partitions of ``consumer``; without those of which nothing was read."""
    given = consumer.position(consumer.assignment()) if offsets is None else offsets
    return [each for each in given if each.offset >= 0]


def _checked(positions: Any, name: str) -> list[Any]:
    """``positions``, if they are what confluent-kafka tells positions by."""
    wrong: Any = positions
    if isinstance(positions, Iterable) and not isinstance(positions, str):
        given = list(positions)
        wrong = next((each for each in given if not isinstance(getattr(each, "offset", None), int)), None)
        if wrong is None:
            return given
    raise TypeError(f"{name}: {wrong!r:.100}: give a list of confluent_kafka.TopicPartition")
