"""Consume, transform, dual-write: how far a consumer has read is part of the unit of work that its records are used in.

Either in the Kafka transaction, under the group's generation (KIP-447), or in the database, where a row that another
member has moved on is the fence. What the application must not do between the two is kept in positions.py.
"""

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

from sqlalchemy import Engine

from dualwrite.client.calls import GroupMember
from dualwrite.client.producing import member_of
from dualwrite.coordinator.database import SqlDecisionStore
from dualwrite.coordinator.driver import BlockingDriver
from dualwrite.coordinator.offset_table import OffsetTable, StoredOffset
from dualwrite.coordinator.positions import Consumer, Positions
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError, KafkaRefusedError, RebalancedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

OffsetReset = Literal["earliest", "latest"]
"""Where a group begins a partition of which nothing is known; as auto.offset.reset."""

NOTHING_READ = -1001
"""The offset of a position before anything was read: librdkafka's OFFSET_INVALID."""

PATIENCE = 30.0
"""Seconds that the cluster may take to tell a committed offset, or where a partition begins."""

_MOVED = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""With which a group coordinator refuses the offsets of who is not its member, or not any more."""


@runtime_checkable
class KafkaConsumer(Protocol):
    """Of confluent_kafka.Consumer, what is used. Positions are confluent_kafka.TopicPartition, or their like."""

    def assignment(self) -> list[Any]:
        """The partitions that it has."""

    def position(self, partitions: list[Any]) -> list[Any]:
        """They, each with the offset after the last record that was handed out; negative if none was."""

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        """They, each with the group's committed offset; negative if there is none."""

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        """The first offset of ``partition``, and the one after its last."""

    def consumer_group_metadata(self) -> Any:
        """Group, generation and member."""

    def seek(self, partition: Any) -> None:
        """Hand out the record at the partition's offset next."""

    def assign(self, partitions: list[Any]) -> None:
        """Read ``partitions`` from their offsets, and no others."""

    def incremental_assign(self, partitions: list[Any]) -> None:
        """Read ``partitions`` from their offsets, too."""

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Read ``partitions`` no more."""


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
        starts = {_place(each): stored[_place(each)].offset for each in wanted}
        for each in wanted:
            each.offset = starts[_place(each)]
        if partitions is None:
            _go_back(consumer, wanted)
            is_whole = True
        else:
            is_whole = _assign(consumer, wanted)
        worker = self.worker() if partitions is None else None  # a callback's is whatever polls
        self.positions.sought(_known_as(consumer, member), starts, worker, is_whole=is_whole)

    def seek_to_committed(self, consumer: KafkaConsumer, auto_offset_reset: OffsetReset) -> None:
        """See DualWrite.seek_to_committed."""
        _require_seekable(consumer, auto_offset_reset)
        known = _known_as(consumer, _member(consumer))
        done = self.positions.done(known)
        wanted = list(consumer.assignment())
        starts = {}
        for each in wanted:
            # The last unit of work may have happened in the database, and its Kafka side be on its way.
            each.offset = starts[_place(each)] = max(
                _beginning(consumer, each, auto_offset_reset), done.get(_place(each), 0)
            )
        _go_back(consumer, wanted)
        self.positions.sought(known, starts, self.worker())

    def _stored(
        self, consumer: KafkaConsumer, group: str, wanted: Iterable[Any], reset: OffsetReset
    ) -> dict[TopicPartition, StoredOffset]:
        """What is stored of ``wanted``. A partition that is new to the group gets its row now, before the first record
        is read, so that a unit of work always has one to compare with."""
        stored = self.table.read(group)
        missing = [each for each in wanted if _place(each) not in stored]
        for each in missing:
            self.table.begin(group, _place(each), _beginning(consumer, each, reset))
        return self.table.read(group) if missing else stored


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
            self._claim(_known_as(consumer, member), given, "seek_to_committed")
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
            places = {_place(each): each.offset for each in given}
            within = {place: offset for (name, place), offset in self._stored.items() if name == group}
            moves = self._consuming.positions.moves(known, places, within)
            self._claim(known, given, "seek_to_stored")
            if moves:
                epochs = {_place(each): epoch for each in given if (epoch := _leader_epoch(each)) is not None}
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
        offsets = {_place(each): each.offset for each in given}
        self._consuming.positions.claim(known, offsets, self._worker() or self._consuming.worker(), remedy)
        self._claimed.setdefault(known, {}).update(offsets)


def _given(consumer: object) -> object:
    """The consumer that the application has, if this is one that async_consuming.py has wrapped."""
    return getattr(consumer, "wrapped", consumer)


def _require_consumer(consumer: object) -> None:
    given = _given(consumer)
    if not isinstance(given, KafkaConsumer):
        raise TypeError(f"a consumer of type {type(given).__name__}: give a confluent_kafka.Consumer")
    if given is consumer and inspect.iscoroutinefunction(given.position):
        raise TypeError(f"a consumer of type {type(given).__name__}: use AsyncDualWrite, or a confluent_kafka.Consumer")


def _require_seekable(consumer: object, auto_offset_reset: str) -> None:
    _require_consumer(consumer)
    if auto_offset_reset not in ("earliest", "latest"):
        raise ConfigurationError(f"auto_offset_reset={auto_offset_reset!r}: use 'earliest' or 'latest'")


def _member(consumer: KafkaConsumer) -> GroupMember:
    return member_of(consumer.consumer_group_metadata())


def _identity(consumer: KafkaConsumer) -> int:
    return id(_given(consumer))


def _known_as(consumer: KafkaConsumer, member: GroupMember) -> Consumer:
    return Consumer(_identity(consumer), member.member_id or None, member.group_instance_id is not None)


def _place(position: Any) -> TopicPartition:
    return TopicPartition(position.topic, position.partition)


def _leader_epoch(position: Any) -> int | None:
    epoch = getattr(position, "leader_epoch", None)
    return epoch if isinstance(epoch, int) and epoch >= 0 else None


def _checked_offsets(consumer: KafkaConsumer, offsets: Iterable[Any] | None) -> list[Any] | None:
    """What the application says, if it can be meant; the unit of work goes on if not."""
    _require_consumer(consumer)
    given = None if offsets is None else _checked(offsets, "offsets")
    for each in given or ():
        if each.offset < 0 and each.offset != NOTHING_READ:
            raise ValueError(f"offsets: {_place(each)} at {each.offset}: give the number of the next record to read")
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


def _beginning(consumer: KafkaConsumer, partition: Any, reset: OffsetReset) -> int:
    """Where the group reads ``partition`` on as far as Kafka knows, or begins it."""
    from dualwrite.client.librdkafka_errors import translating  # loads librdkafka, which the caller has anyhow

    with translating(f"offsets of {_place(partition)}"):
        (committed,) = consumer.committed([partition], timeout=PATIENCE)
        if committed.offset >= 0:
            return int(committed.offset)
        first, end = consumer.get_watermark_offsets(partition, timeout=PATIENCE)
        return int(first if reset == "earliest" else end)


def _assign(consumer: KafkaConsumer, partitions: list[Any]) -> bool:
    """Assign ``partitions``, by whichever protocol the group has; True if they are all that ``consumer`` has now."""
    if _is_taken(lambda: consumer.assign(partitions)):
        return True
    consumer.incremental_assign(partitions)
    return False


def _go_back(consumer: KafkaConsumer, wanted: list[Any]) -> None:
    """Let ``consumer`` read on from the offsets of ``wanted``, which are all that it has. Whatever its positions: of
    where it was sought before, and read nothing since, they say nothing."""
    if not all(_sought(consumer, each) for each in wanted):
        _assign_again(consumer, wanted)


def _assign_again(consumer: KafkaConsumer, partitions: list[Any]) -> None:
    if not _is_taken(lambda: consumer.assign(partitions)):
        consumer.incremental_unassign(partitions)
        consumer.incremental_assign(partitions)


def _sought(consumer: KafkaConsumer, partition: Any) -> bool:
    """False if it cannot be sought yet: it was only just assigned."""
    return _is_taken(lambda: consumer.seek(partition))


def _is_taken(call: Callable[[], None]) -> bool:
    """False if librdkafka says that it is in no state for it: by assign() that the group's protocol is cooperative."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        call()
    except KafkaException as error:
        if error.args[0].code() != KafkaError._STATE:
            raise
        return False
    return True
