"""The sender under losses, moves and answers of every kind: a partition has what was sent, once and in order."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dualwrite.broker.core.partitions import PartitionState
from dualwrite.client.engine import accumulator as sender_module
from dualwrite.client.engine.accumulator import NEVER, PartitionQueue, ProducerBatch, RecordAccumulator
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import iterate_records
from dualwrite.records.compression import Codec
from dualwrite.records.header import peek_header
from dualwrite.wire.error_codes import ErrorCode

ME = ProducerIdentity(7, 3)
DELIVERY_TIMEOUT = 30.0
SMALL = 100
"""Bytes of a batch in which no second record of these tests has room."""


def make(batch_size: int = 1_000_000, linger: float | None = None) -> RecordAccumulator:
    return RecordAccumulator(batch_size, DELIVERY_TIMEOUT, linger)


def add(
    sender: RecordAccumulator, *values: bytes, partition: int = 0, now: float = 0.0, on_delivery: Any = None
) -> PartitionQueue:
    lane = sender.lane("t", partition)
    for value in values:
        sender.append(lane, None, value, (), 0, on_delivery, now)
    return lane


def take(sender: RecordAccumulator, lane: PartitionQueue, to: Any = "leader") -> ProducerBatch:
    assert lane.may_send(to, 0.0, 5)
    return sender.take(lane, to, ME, Codec.NONE, None)


def values(batch: ProducerBatch) -> list[bytes | None]:
    return [record.value for record in iterate_records(batch.data)]


def test_records_of_a_partition_share_a_batch_until_it_is_full() -> None:
    sender = make(batch_size=200)
    lane = add(sender, *[b"x" * 20] * 7)
    sender.flush(0.0)
    taken = [take(sender, lane) for _ in range(len(lane.queue))]
    counts = [batch.count for batch in taken]
    assert sum(counts) == 7
    assert all(len(batch.data) <= 200 for batch in taken)
    assert counts[0] > 1
    assert [batch.sequence for batch in taken] == [sum(counts[:place]) for place in range(len(counts))]


def test_nothing_is_sent_before_it_is_flushed_or_full() -> None:
    sender = make()
    add(sender, b"a")
    assert sender.lanes_to_send() == []
    sender.flush(0.0)
    assert len(sender.lanes_to_send()) == 1


def test_a_batch_lingers_as_long_as_it_is_told_to() -> None:
    sender = make(linger=0.5)
    lane = add(sender, b"a", now=10.0)
    assert sender.wake_at(10.0) == 10.5
    sender.close_lingering(10.4)
    assert not lane.queue
    sender.close_lingering(10.5)
    assert len(lane.queue) == 1


def test_at_most_so_many_batches_of_a_partition_are_in_flight() -> None:
    sender = make(SMALL)
    lane = add(sender, *[b"x" * 50] * 7)
    sender.flush(0.0)
    for _ in range(5):
        take(sender, lane)
    assert not lane.may_send("leader", 0.0, 5)
    sender.acknowledge(lane.in_flight[0])
    assert lane.may_send("leader", 0.0, 5)


def test_a_new_leader_gets_nothing_while_the_old_one_may_still_answer() -> None:
    sender = make(SMALL)
    lane = add(sender, b"x" * 50, b"y" * 50)
    sender.flush(0.0)
    first = take(sender, lane, "old")
    assert not lane.may_send("new", 0.0, 5)
    sender.acknowledge(first)
    assert lane.may_send("new", 0.0, 5)


def test_what_failed_goes_first_and_waits_for_the_rest_and_for_its_pause() -> None:
    sender = make(SMALL)
    lane = add(sender, b"x" * 50, b"y" * 50, b"z" * 50)
    sender.flush(0.0)
    first, second = take(sender, lane), take(sender, lane)
    sender.send_again(first, 2.0, "NOT_ENOUGH_REPLICAS")
    assert not lane.may_send("leader", 3.0, 5)  # the second is in flight
    assert sender.is_out_of_order(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    sender.send_again(second, 0.0, "out of order")
    assert not lane.may_send("leader", 1.9, 5)
    assert sender.wake_at(1.0) == 2.0
    assert lane.may_send("leader", 2.0, 5)
    again = [sender.take(lane, "leader", ME, Codec.NONE, None) for _ in range(3)]
    assert [batch.sequence for batch in again] == [0, 1, 2]
    assert again[:2] == [first, second]
    assert first.attempts == 2


def test_the_first_batch_that_is_missing_is_not_merely_out_of_order() -> None:
    sender = make(SMALL)
    lane = add(sender, b"x" * 50)
    sender.flush(0.0)
    assert not sender.is_out_of_order(take(sender, lane), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_batch_has_its_time_from_when_it_is_to_be_sent() -> None:
    sender = make()
    lane = add(sender, b"a", now=0.0)
    assert sender.overdue(1000.0) is None  # the unit of work does its SQL
    sender.flush(1000.0)
    assert sender.wake_at(1000.0) == 1000.0 + DELIVERY_TIMEOUT
    assert sender.overdue(1000.0 + DELIVERY_TIMEOUT - 1) is None
    assert sender.overdue(1000.0 + DELIVERY_TIMEOUT) is lane.queue[0]


def test_dropping_forgets_everything_and_numbers_begin_again() -> None:
    sender = make(SMALL)
    lane = add(sender, b"x" * 50, b"y" * 50, on_delivery=print)
    sender.flush(0.0)
    first = take(sender, lane)
    add(sender, b"z", partition=1)
    dropped = sender.drop()
    assert sorted(batch.count for batch in dropped) == [1, 1, 1]
    assert sender.is_empty
    assert (sender.buffered, sender.records) == (0, 0)
    assert not sender.is_waiting_for(first)
    assert sender.wake_at(0.0) == NEVER
    fresh = add(sender, b"a")
    sender.flush(0.0)
    assert take(sender, fresh).sequence == 0


def test_a_record_that_cannot_be_encoded_leaves_nothing() -> None:
    """No callback that another record's acknowledgement would call, and no batch without records."""
    sender, wrong = make(), (5, b"x")
    lane = sender.lane("t", 0)
    with pytest.raises(AttributeError):
        sender.append(lane, None, b"bad", [wrong], 0, print, 0.0)  # type: ignore[list-item]
    assert sender.is_empty
    sender.flush(0.0)
    assert sender.lanes_to_send() == []
    add(sender, b"good")
    with pytest.raises(AttributeError):
        sender.append(lane, None, b"bad", [wrong], 0, print, 0.0)  # type: ignore[list-item]
    add(sender, b"better", on_delivery=len)
    sender.flush(0.0)
    batch = take(sender, lane)
    assert values(batch) == [b"good", b"better"]
    assert [(each.on_delivery, each.place) for each in batch.tracked] == [(len, 1)]


class Interrupted(BaseException):
    """As KeyboardInterrupt, out of a signal handler."""


def interrupt_at(nth: int, act: Callable[[], object]) -> bool:
    """``act``, interrupted before its ``nth`` line of the sender is carried out; False if it has fewer lines."""
    lines = 0

    def tracer(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != sender_module.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == nth:
                raise Interrupted
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        act()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("batch_size", [SMALL, 1_000_000])
def test_wherever_an_interrupt_strikes_no_record_is_taken_for_acknowledged(batch_size: int) -> None:
    """What it left is waited for, also if the answer to another is there."""
    nth, has_struck, seen = 0, True, set()
    while has_struck:
        nth += 1
        sender = make(batch_size)
        lane = sender.lane("t", 0)
        has_struck = interrupt_at(nth, lambda: add(sender, b"x" * 50, b"y" * 50))  # noqa: B023 (called at once)
        other = add(sender, b"z", partition=1)
        sender.flush(0.0)
        sender.acknowledge(take(sender, other))
        is_empty = sender.is_empty
        left = sum(batch.count for batch in {*lane.queue, *sender.drop()})
        assert is_empty == (not left), f"interrupted at line {nth}: {left} records are left"
        seen.add(left)
    assert seen == {0, 1, 2}


def test_a_record_that_an_interrupt_left_uncounted_is_waited_for() -> None:
    sender = make()
    lane = add(sender, b"a", b"b")
    sender.records -= 1  # the interrupt came between the batch and the count
    sender.buffered -= 41
    sender.flush(0.0)
    other = add(sender, b"c", partition=1)
    sender.flush(0.0)
    sender.acknowledge(take(sender, lane))
    assert not sender.is_empty
    sender.acknowledge(take(sender, other))
    assert sender.is_empty
    assert (sender.buffered, sender.records) == (0, 0)


class World:
    """One partition with the broker's real checks, a sender, and a network that Hypothesis chooses the deeds of."""

    def __init__(self, choose: Callable[[int], int], batch_size: int) -> None:
        self.choose = choose
        self.sender = make(batch_size)
        self.lane = self.sender.lane("t", 0)
        self.partition = PartitionState()
        self.log: list[bytes | None] = []
        self.in_flight: list[ProducerBatch] = []
        """Sent on the connection that there is, in order."""
        self.zombies: list[ProducerBatch] = []
        """Sent on a connection that broke: they may arrive yet, or never."""
        self.now = 0.0

    def send(self) -> None:
        while self.lane.may_send("leader", self.now, 5):
            self.in_flight.append(self.sender.take(self.lane, "leader", ME, Codec.NONE, None))

    def carry_out(self, batch: ProducerBatch) -> ErrorCode:
        header = peek_header(batch.data)
        verdict = self.partition.decide(header, begins_at_zero=True)
        if verdict.appends:
            self.partition.apply(header._replace(base_offset=self.partition.end_offset), None)
            self.log += values(batch)
        return verdict.error

    def happen(self) -> None:
        """One request is answered, or refused, or the connection breaks and takes some with it."""
        deed = self.choose(5)
        if self.zombies and self.choose(2):
            self.carry_out(self.zombies.pop(0))
        if deed == 4:
            arrived = self.choose(len(self.in_flight) + 1)
            for batch in self.in_flight[:arrived]:
                self.carry_out(batch)
            self.zombies += self.in_flight[arrived:]
            for batch in self.in_flight:
                self.sender.send_again(batch, self.now, "reset")
            self.in_flight.clear()
            event("connection broke")
            return
        batch = self.in_flight.pop(0)
        if deed == 3:
            self.sender.send_again(batch, self.now + 1.0, "NOT_ENOUGH_REPLICAS")
            event("refused")
            return
        error = self.carry_out(batch)
        if deed == 2:
            self.sender.send_again(batch, self.now, "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
        elif error is ErrorCode.NONE:
            self.sender.acknowledge(batch)
        else:
            assert self.sender.is_out_of_order(batch, error), error
            event("out of order")
            self.sender.send_again(batch, self.now, "out of order")


@settings(max_examples=200, report_multiple_bugs=False)
@given(
    sizes=st.lists(st.integers(1, 80), min_size=1, max_size=14),
    deeds=st.lists(st.integers(0, 1 << 16), max_size=60),
    batch_size=st.sampled_from([SMALL, 200, 1_000_000]),
)
def test_whatever_the_network_does_the_partition_has_every_record_once_and_in_order(
    sizes: list[int], deeds: list[int], batch_size: int
) -> None:
    remaining = list(deeds)
    world = World(lambda options: remaining.pop() % options if remaining else 0, batch_size)
    wanted = [b"%d" % number + b"." * size for number, size in enumerate(sizes)]
    for value in wanted:
        world.sender.append(world.lane, None, value, (), 0, None, world.now)
        world.send()
        if world.in_flight and world.choose(2):
            world.happen()
    world.sender.flush(world.now)
    while not world.sender.is_empty:
        world.send()
        if world.in_flight:
            world.happen()
        else:
            world.now += 1.0
    for zombie in world.zombies:
        world.carry_out(zombie)
    assert world.log == wanted
    assert world.sender.buffered == 0


def test_a_sender_that_lets_batches_overtake_each_other_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above fails if what is sent again does not wait its turn."""

    def hasty(self: PartitionQueue, to: Any, now: float, max_in_flight: int) -> bool:
        return bool(self.queue)

    def last(self: RecordAccumulator, batch: ProducerBatch, at: float, why: str, code: int = 0) -> None:
        batch.lane.in_flight.remove(batch)
        batch.sequence = -1  # a number of its own, as if it were another batch
        batch.lane.queue.append(batch)
        self._sending[batch.lane] = None

    monkeypatch.setattr(PartitionQueue, "may_send", hasty)
    monkeypatch.setattr(RecordAccumulator, "send_again", last)
    with pytest.raises(AssertionError):
        test_whatever_the_network_does_the_partition_has_every_record_once_and_in_order()
