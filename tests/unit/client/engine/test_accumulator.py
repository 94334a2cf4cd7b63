"""The accumulator under losses, moves and answers of every kind: a partition has what was sent, once and in order."""

import sys
from collections.abc import Callable
from itertools import permutations
from types import FrameType
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dualwrite.broker.core.partitions import PartitionState
from dualwrite.client.engine import accumulator as sender_module
from dualwrite.client.engine.accumulator import NEVER, PartitionQueue, ProducerBatch, RecordAccumulator
from dualwrite.records.compression import Codec
from dualwrite.records.header import MAX_SEQUENCE, peek_header
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.accumulators import DELIVERY_TIMEOUT, ME, SMALL, add, make, take, values
from tests.support.user_errors import HandlerInterrupt


def test_records_of_a_partition_share_a_batch_until_it_is_full() -> None:
    accumulator = make(batch_size=200)
    queue = add(accumulator, *[b"x" * 20] * 7)
    accumulator.flush(0.0)
    taken = [take(accumulator, queue) for _ in range(len(queue.waiting))]
    counts = [batch.count for batch in taken]
    assert sum(counts) == 7
    assert all(len(batch.data) <= 200 for batch in taken)
    assert counts[0] > 1
    assert [batch.sequence for batch in taken] == [sum(counts[:place]) for place in range(len(counts))]


def test_after_the_greatest_sequence_number_comes_zero() -> None:
    accumulator = make(SMALL)
    queue = add(accumulator, b"x" * 50, b"y" * 50)
    queue.next_sequence = MAX_SEQUENCE
    accumulator.flush(0.0)
    assert [peek_header(take(accumulator, queue).data).base_sequence for _ in range(2)] == [MAX_SEQUENCE, 0]


def test_a_partition_that_was_served_waits_behind_the_others() -> None:
    accumulator = make(SMALL)
    first = add(accumulator, b"x" * 50, b"y" * 50)
    second = add(accumulator, b"z" * 50, partition=1)
    accumulator.flush(0.0)
    assert accumulator.queues_to_send() == [first, second]
    take(accumulator, first)
    assert accumulator.queues_to_send() == [second, first]


def test_the_time_of_a_batch_that_is_sent_early_begins_when_a_verb_waits_for_it() -> None:
    accumulator = make()
    add(accumulator, b"a", now=0.0)
    accumulator.send_early()
    assert len(accumulator.queues_to_send()) == 1
    assert accumulator.overdue(10 * DELIVERY_TIMEOUT) is None, "the database may take long meanwhile"
    assert accumulator.wake_at(0.0) == NEVER
    began = 20 * DELIVERY_TIMEOUT
    accumulator.flush(began)
    assert accumulator.overdue(began + DELIVERY_TIMEOUT - 1) is None
    assert accumulator.overdue(began + DELIVERY_TIMEOUT) is not None


def test_a_second_flush_gives_a_batch_no_more_time() -> None:
    accumulator = make()
    add(accumulator, b"a")
    accumulator.flush(0.0)
    accumulator.flush(DELIVERY_TIMEOUT - 1)
    assert accumulator.overdue(DELIVERY_TIMEOUT) is not None


def test_nothing_is_sent_before_it_is_flushed_or_full() -> None:
    accumulator = make()
    add(accumulator, b"a")
    assert accumulator.queues_to_send() == []
    accumulator.flush(0.0)
    assert len(accumulator.queues_to_send()) == 1


def test_a_batch_lingers_for_its_linger_time() -> None:
    accumulator = make(linger=0.5)
    queue = add(accumulator, b"a", now=10.0)
    assert accumulator.wake_at(10.0) == 10.5
    accumulator.close_lingering(10.4)
    assert not queue.waiting
    accumulator.close_lingering(10.5)
    assert len(queue.waiting) == 1


def test_a_partition_has_no_more_batches_in_flight_than_the_limit() -> None:
    accumulator = make(SMALL)
    queue = add(accumulator, *[b"x" * 50] * 7)
    accumulator.flush(0.0)
    for _ in range(5):
        take(accumulator, queue)
    assert not queue.may_send("leader", 0.0, 5)
    accumulator.acknowledge(queue.in_flight[0])
    assert queue.may_send("leader", 0.0, 5)


def test_no_batch_leaves_the_brokers_memory_while_it_may_be_sent_again() -> None:
    """A broker recognises the last five batches. The first one is in its log, and its acknowledgement was lost."""
    accumulator = make(SMALL)
    queue = add(accumulator, *[b"x" * 50] * 7)
    accumulator.flush(0.0)
    first, *others = [take(accumulator, queue) for _ in range(5)]
    accumulator.send_again(first, 0.0, "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
    for batch in others:
        accumulator.acknowledge(batch)
    assert take(accumulator, queue) is first
    assert not queue.may_send("leader", 0.0, 5), "the sixth would push the first one out"
    accumulator.acknowledge(first)
    assert queue.may_send("leader", 0.0, 5)


def test_a_new_leader_gets_nothing_while_the_old_one_may_still_answer() -> None:
    accumulator = make(SMALL)
    queue = add(accumulator, b"x" * 50, b"y" * 50)
    accumulator.flush(0.0)
    first = take(accumulator, queue, "old")
    assert not queue.may_send("new", 0.0, 5)
    accumulator.acknowledge(first)
    assert queue.may_send("new", 0.0, 5)


def test_a_failed_batch_is_resent_first_after_the_rest_returned_and_its_pause_ended() -> None:
    accumulator = make(SMALL)
    queue = add(accumulator, b"x" * 50, b"y" * 50, b"z" * 50)
    accumulator.flush(0.0)
    first, second = take(accumulator, queue), take(accumulator, queue)
    accumulator.send_again(first, 2.0, "NOT_ENOUGH_REPLICAS")
    assert not queue.may_send("leader", 3.0, 5)  # the second is in flight
    assert accumulator.is_out_of_order(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    accumulator.send_again(second, 0.0, "out of order")
    assert not queue.may_send("leader", 1.9, 5)
    assert accumulator.wake_at(1.0) == 2.0
    assert queue.may_send("leader", 2.0, 5)
    again = [accumulator.take(queue, "leader", ME, Codec.NONE, None) for _ in range(3)]
    assert [batch.sequence for batch in again] == [0, 1, 2]
    assert again[:2] == [first, second]
    assert first.attempts == 2


@pytest.mark.parametrize("failing", list(permutations(range(3))))
def test_batches_that_fail_in_any_order_are_sent_again_in_their_own_and_beside_each_other(
    failing: tuple[int, ...],
) -> None:
    accumulator = make(SMALL)
    queue = add(accumulator, *[b"%d" % number * 50 for number in range(5)])
    accumulator.flush(0.0)
    sent = [take(accumulator, queue) for _ in range(3)]
    for number in failing:
        accumulator.send_again(sent[number], 0.0, "NOT_ENOUGH_REPLICAS")
    again = []
    while queue.may_send("leader", 0.0, 3):
        again.append(accumulator.take(queue, "leader", ME, Codec.NONE, None))
    assert again == sent, "three, as before, and in their order"
    assert [batch.attempts for batch in queue.waiting] == [0, 0]


def test_a_batch_knows_the_brokers_last_refusal() -> None:
    """It becomes the reason if the batch is given up."""
    accumulator = make()
    queue = add(accumulator, b"a")
    accumulator.flush(0.0)
    batch = take(accumulator, queue)
    assert (batch.last_code, batch.last_error) == (0, "")
    accumulator.send_again(batch, 0.0, "NOT_ENOUGH_REPLICAS", ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (batch.last_code, batch.last_error) == (ErrorCode.NOT_ENOUGH_REPLICAS, "NOT_ENOUGH_REPLICAS")
    accumulator.send_again(take(accumulator, queue), 0.0, "reset")
    assert (batch.last_code, batch.last_error) == (0, "reset"), "the last attempt had no answer"


def test_the_accumulator_wakes_for_the_partition_whose_pause_ends_first() -> None:
    accumulator = make()
    for partition, retry_at in enumerate((7.0, 3.0, 5.0)):
        queue = add(accumulator, b"a", partition=partition)
        accumulator.flush(0.0)
        accumulator.send_again(take(accumulator, queue), retry_at, "NOT_ENOUGH_REPLICAS")
    assert accumulator.wake_at(0.0) == 3.0
    assert accumulator.wake_at(3.0) == 5.0, "the other can be sent already"
    assert accumulator.wake_at(7.0) == DELIVERY_TIMEOUT


def test_the_first_batch_that_is_missing_is_not_merely_out_of_order() -> None:
    accumulator = make(SMALL)
    queue = add(accumulator, *[b"x" * 50] * 4)
    accumulator.flush(0.0)
    sent = [take(accumulator, queue) for _ in range(3)]
    misses = [accumulator.is_out_of_order(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) for batch in sent]
    assert misses == [False, True, True]


def test_a_batch_has_its_time_from_when_it_is_to_be_sent() -> None:
    accumulator = make()
    queue = add(accumulator, b"a", now=0.0)
    assert accumulator.overdue(1000.0) is None  # the unit of work does its SQL
    accumulator.flush(1000.0)
    assert accumulator.wake_at(1000.0) == 1000.0 + DELIVERY_TIMEOUT
    assert accumulator.overdue(1000.0 + DELIVERY_TIMEOUT - 1) is None
    assert accumulator.overdue(1000.0 + DELIVERY_TIMEOUT) is queue.waiting[0]


def test_dropping_forgets_everything_and_numbers_begin_again() -> None:
    accumulator = make(SMALL)
    queue = add(accumulator, b"x" * 50, b"y" * 50, on_delivery=print)
    accumulator.flush(0.0)
    first = take(accumulator, queue)
    add(accumulator, b"z", partition=1)
    dropped = accumulator.drop()
    assert sorted(batch.count for batch in dropped) == [1, 1, 1]
    assert accumulator.is_empty
    assert (accumulator.buffered, accumulator.records) == (0, 0)
    assert not accumulator.is_waiting_for(first)
    assert accumulator.wake_at(0.0) == NEVER
    fresh = add(accumulator, b"a")
    accumulator.flush(0.0)
    assert take(accumulator, fresh).sequence == 0


def test_a_record_that_cannot_be_encoded_leaves_nothing() -> None:
    """No callback that another record's acknowledgement would call, and no batch without records."""
    accumulator, wrong = make(), (5, b"x")
    bad = OutgoingRecord("t", b"bad", on_delivery=print)._replace(headers=[wrong])  # type: ignore[list-item]
    queue = accumulator.queue("t", 0)
    with pytest.raises(AttributeError):
        accumulator.append(queue, bad, 3, 0, 0.0)
    assert accumulator.is_empty
    accumulator.flush(0.0)
    assert accumulator.queues_to_send() == []
    add(accumulator, b"good")
    with pytest.raises(AttributeError):
        accumulator.append(queue, bad, 3, 0, 0.0)
    add(accumulator, b"better", on_delivery=len)
    accumulator.flush(0.0)
    batch = take(accumulator, queue)
    assert values(batch) == [b"good", b"better"]
    assert [(record.on_delivery, place) for record, place, _, _ in batch.tracked_records()] == [(len, 1)]


def interrupt_at(nth: int, act: Callable[[], object]) -> bool:
    """``act``, interrupted before its ``nth`` line of the accumulator is carried out; False if it has fewer lines."""
    lines = 0

    def tracer(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != sender_module.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == nth:
                raise HandlerInterrupt
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        act()
    except HandlerInterrupt:
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
        accumulator = make(batch_size)
        queue = accumulator.queue("t", 0)
        has_struck = interrupt_at(nth, lambda: add(accumulator, b"x" * 50, b"y" * 50))  # noqa: B023 (called at once)
        other = add(accumulator, b"z", partition=1)
        accumulator.flush(0.0)
        accumulator.acknowledge(take(accumulator, other))
        is_empty = accumulator.is_empty
        left = sum(batch.count for batch in {*queue.waiting, *accumulator.drop()})
        assert is_empty == (not left), f"interrupted at line {nth}: {left} records are left"
        seen.add(left)
    assert seen == {0, 1, 2}


def test_a_record_that_an_interrupt_left_uncounted_is_waited_for() -> None:
    accumulator = make()
    queue = add(accumulator, b"a", b"b")
    accumulator.records -= 1  # the interrupt came between the batch and the count
    accumulator.buffered -= 41
    accumulator.flush(0.0)
    other = add(accumulator, b"c", partition=1)
    accumulator.flush(0.0)
    accumulator.acknowledge(take(accumulator, queue))
    assert not accumulator.is_empty
    accumulator.acknowledge(take(accumulator, other))
    assert accumulator.is_empty
    assert (accumulator.buffered, accumulator.records) == (0, 0)


class PartitionWorld:
    """One partition with the broker's real checks, an accumulator, and a network whose deeds Hypothesis chooses."""

    def __init__(self, choose: Callable[[int], int], batch_size: int) -> None:
        self.choose = choose
        self.accumulator = make(batch_size)
        self.queue = self.accumulator.queue("t", 0)
        self.partition = PartitionState()
        self.log: list[bytes | None] = []
        self.in_flight: list[ProducerBatch] = []
        """Sent on the connection that there is, in order."""
        self.zombies: list[ProducerBatch] = []
        """Sent on a connection that broke: they may arrive yet, or never."""
        self.now = 0.0

    def send(self) -> None:
        while self.queue.may_send("leader", self.now, 5):
            self.in_flight.append(self.accumulator.take(self.queue, "leader", ME, Codec.NONE, None))

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
                self.accumulator.send_again(batch, self.now, "reset")
            self.in_flight.clear()
            event("connection broke")
            return
        batch = self.in_flight.pop(0)
        if deed == 3:
            self.accumulator.send_again(batch, self.now + 1.0, "NOT_ENOUGH_REPLICAS")
            event("refused")
            return
        error = self.carry_out(batch)
        if deed == 2:
            self.accumulator.send_again(batch, self.now, "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
        elif error is ErrorCode.NONE:
            self.accumulator.acknowledge(batch)
        else:
            assert self.accumulator.is_out_of_order(batch, error), error
            event("out of order")
            self.accumulator.send_again(batch, self.now, "out of order")


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
    world = PartitionWorld(lambda options: remaining.pop() % options if remaining else 0, batch_size)
    wanted = [b"%d" % number + b"." * size for number, size in enumerate(sizes)]
    for value in wanted:
        world.accumulator.append(world.queue, OutgoingRecord("t", value), len(value), 0, world.now)
        world.send()
        if world.in_flight and world.choose(2):
            world.happen()
    world.accumulator.flush(world.now)
    while not world.accumulator.is_empty:
        world.send()
        if world.in_flight:
            world.happen()
        else:
            world.now += 1.0
    for zombie in world.zombies:
        world.carry_out(zombie)
    assert world.log == wanted
    assert world.accumulator.buffered == 0


def test_a_sender_that_lets_batches_overtake_each_other_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above fails if what is sent again does not wait its turn."""

    def hasty(self: PartitionQueue, to: Any, now: float, max_in_flight: int) -> bool:
        return bool(self.waiting)

    def last(self: RecordAccumulator, batch: ProducerBatch, at: float, why: str, code: int = 0) -> None:
        plain(self, batch, at, why, code)
        batch.queue.waiting.remove(batch)
        batch.sequence = -1  # a number of its own, as if it were another batch
        batch.queue.waiting.append(batch)

    plain = RecordAccumulator.send_again
    monkeypatch.setattr(PartitionQueue, "may_send", hasty)
    monkeypatch.setattr(RecordAccumulator, "send_again", last)
    with pytest.raises(AssertionError):
        test_whatever_the_network_does_the_partition_has_every_record_once_and_in_order()
