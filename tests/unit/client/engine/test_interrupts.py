"""What an interrupt costs the native producer: the transaction that it strikes, and nothing after it."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dualwrite import client
from dualwrite.client.engine.accumulator import ProducerBatch, RecordAccumulator
from dualwrite.client.engine.contract import Operation
from dualwrite.client.engine.coordinator_sender import CoordinatorSender
from dualwrite.client.engine.sender import Sender
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import AnswerLostError, PrepareFailedError
from dualwrite.ids import TopicPartition
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver
from tests.support.client.spared_code import REPORT
from tests.support.user_errors import HandlerInterrupt

_ROOM = str(Path(client.__file__).parent)
_LONG = 1.0
"""Seconds that nothing takes which is not waiting in vain."""
_MANY = 100
"""Waits that no test needs."""


class ClosingDriver:
    """A simulated cluster as the driver of a producer: where BlockingDriver closes its sockets, so does this."""

    def __init__(self, engine: Any, cluster: SimulatedCluster) -> None:
        self.simulated = SimulatedDriver(cluster)
        self.simulated.engine = engine
        self.waited = 0.0
        """Seconds that passed because there was nothing to do."""
        self._waits = 0
        self.catch_up()

    def wait(self, operation: Operation) -> Any:
        self._waits += 1
        assert self._waits < _MANY, "the producer spins"
        self.catch_up()
        try:
            while not operation.is_done:
                before = self.simulated.now
                assert self.simulated.turn(operation), "nothing will ever happen again"
                self.waited += self.simulated.now - before
        except BaseException:
            self.give_up()
            raise
        return operation.outcome()

    def pump(self) -> None:
        self.catch_up()
        try:
            simulated = self.simulated
            while (commands := simulated.engine.step(simulated.now)) or simulated.events:
                for command in commands:
                    simulated.perform(command)
                while simulated.events:
                    simulated.events.popleft()()
        except BaseException:
            self.give_up()
            raise

    def close(self) -> None:
        """There is nothing to close."""

    def catch_up(self) -> None:
        """The producer's own clock goes on."""
        self.simulated.now = max(self.simulated.now, time.monotonic())

    def give_up(self) -> None:
        """What an interrupt comes to."""
        self.simulated.opened.clear()
        self.simulated.events.clear()
        self.simulated.engine.interrupted()


class InterruptWorld:
    """A cluster, and one producer after another."""

    def __init__(self, linger_ms: int = 0) -> None:
        self.cluster = SimulatedCluster(partitions=3)
        self._linger_ms = linger_ms
        self.told: Counter[Any] = Counter()
        self.producer = self.start()

    def start(self) -> Any:
        config = {"bootstrap.servers": "one:1", "transactional.id": "app-0", "linger.ms": self._linger_ms}
        producer: Any = TwoPhaseProducer(config, make_driver=self._make_driver)  # type: ignore[arg-type]
        producer.init_transactions()
        return producer

    def _make_driver(self, engine: Any, client: Any) -> ClosingDriver:
        self.driver = ClosingDriver(engine, self.cluster)
        return self.driver

    @property
    def waited(self) -> float:
        return self.driver.waited

    def unit(self, name: str) -> None:
        """Records for a topic that is known and for one that is new, and offsets."""
        self.producer.begin_transaction()
        for topic in ("t", f"u-{name}"):
            self.producer.produce(topic, name, partition=0, on_delivery=self.tell)
        self.producer.poll()
        self.producer.produce("t", name, partition=0, on_delivery=self.tell)
        self.producer.send_offsets_to_transaction([CommittedOffset("s", 0, 5)], f"g-{name}")
        self.producer.prepare_transaction()
        self.producer.commit_transaction()

    def tell(self, _error: Any, record: Any) -> None:
        self.told[record] += 1

    def recover(self) -> None:
        """As the documentation says: abort, and if that is not allowed, make a new one."""
        if self.producer.state in (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE, ProducerState.PREPARED):
            self.producer.abort_transaction()
        elif self.producer.state is not ProducerState.READY:
            self.producer.close()
            self.producer = self.start()

    def committed(self, topic: str, partition: int = 0) -> list[Any]:
        log = self.cluster.logs.get(TopicPartition(topic, partition))
        return log.committed() if log else []


def interrupt_at(nth: int, act: Callable[[], object]) -> bool:
    """``act``, interrupted before its ``nth`` line of the client is carried out; False if it has fewer lines."""
    lines = 0

    def tracer(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(_ROOM) or frame.f_code is REPORT:
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


def strike(nth: int) -> bool:
    """Interrupt a unit of work at its ``nth`` line, and see that it is there or not, and that the next one is."""
    world = InterruptWorld()
    world.unit("first")
    has_struck = interrupt_at(nth, lambda: world.unit("second"))
    world.recover()
    began = world.waited
    world.unit("second")
    world.unit("third")
    assert world.waited - began < _LONG, f"interrupted at line {nth}: something was waited for in vain"
    there = world.committed("u-second")
    assert there in ([b"second"], [b"second"] * 2), f"interrupted at line {nth}"
    assert world.committed("t") == [b"first"] * 2 + [b"second"] * 2 * len(there) + [b"third"] * 2
    assert world.committed("u-third") == [b"third"]
    assert set(world.told.values()) <= {1}, "a record was told of twice"
    return has_struck


def strike_poll(nth: int) -> bool:
    """Interrupt a poll that sends and takes in answers at its ``nth`` line, and commit as if nothing had been."""
    world = InterruptWorld(linger_ms=5)
    world.producer.begin_transaction()
    for partition in range(3):
        world.producer.produce("t", "a", partition=partition, on_delivery=world.tell)
    world.driver.simulated.now += 1  # the batches have lingered
    has_struck = interrupt_at(nth, world.producer.poll)
    try:
        ended = world.producer.commit_transaction()
    except PrepareFailedError:
        ended = world.producer.abort_transaction()
    there = [b"a"] if ended is TransactionResult.COMMITTED else []
    assert [world.committed("t", partition) for partition in range(3)] == [there] * 3, f"interrupted at line {nth}"
    world.unit("next")
    assert world.committed("u-next") == [b"next"]
    return has_struck


@pytest.mark.parametrize(("struck", "step"), [(strike, 41), (strike_poll, 7)])
def test_wherever_an_interrupt_strikes_the_next_units_of_work_go_on(struck: Callable[[int], bool], step: int) -> None:
    nth = 1
    while struck(nth):
        nth += step


@pytest.mark.slow
@pytest.mark.parametrize("struck", [strike, strike_poll])
def test_an_interrupt_at_every_line_leaves_the_next_units_working(struck: Callable[[int], bool]) -> None:
    nth = 1
    while struck(nth):
        nth += 1


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (Sender, "metadata_answered"),
        (CoordinatorSender, "coordinator_answered"),
        (RecordAccumulator, "is_waiting_for"),
        (CoordinatorSender, "answered"),
    ],
)
def test_an_answer_that_an_interrupt_took_away_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, place: type, name: str
) -> None:
    world = InterruptWorld()
    world.unit("first")

    def interrupted(*_: Any) -> None:
        raise HandlerInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, name, interrupted)
        with pytest.raises(HandlerInterrupt):
            world.unit("second")
    assert world.producer.state is ProducerState.ABORTABLE
    assert world.producer.abort_transaction() is TransactionResult.ABORTED
    began = world.waited
    world.unit("second")
    assert world.waited - began < _LONG
    assert world.committed("u-second") == [b"second"]


def test_acknowledgements_that_were_counted_by_half_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InterruptWorld(linger_ms=5)
    world.producer.begin_transaction()
    world.producer.produce("t", "a", on_delivery=world.tell)
    world.driver.simulated.now += 1

    plain = RecordAccumulator.acknowledge

    def interrupted(self: RecordAccumulator, batch: ProducerBatch) -> None:
        buffered, records = self.buffered, self.records
        plain(self, batch)
        self.buffered, self.records = buffered, records
        batch.queue.in_flight.append(batch)
        raise HandlerInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RecordAccumulator, "acknowledge", interrupted)
        with pytest.raises(HandlerInterrupt):
            world.producer.poll()
    assert world.producer.state is ProducerState.ABORTABLE
    with pytest.raises(PrepareFailedError, match="app-0: interrupted in the middle of a call"):
        world.producer.commit_transaction()
    assert world.producer.abort_transaction() is TransactionResult.ABORTED


@pytest.mark.parametrize("state", [ProducerState.READY, ProducerState.PREPARED])
def test_an_interrupted_poll_without_an_open_transaction_changes_nothing(state: ProducerState) -> None:
    world = InterruptWorld()
    world.unit("first")
    if state is ProducerState.PREPARED:
        world.producer.begin_transaction()
        world.producer.produce("t", "a", partition=0)
        world.producer.prepare_transaction()
    world.driver.give_up()
    assert world.producer.state is state
    if state is ProducerState.PREPARED:
        assert world.producer.commit_transaction() is TransactionResult.COMMITTED
        assert world.committed("t")[-1] == b"a"
    world.unit("second")
    assert world.committed("u-second") == [b"second"]


def test_the_outcome_of_an_interrupted_commit_is_unknown() -> None:
    world = InterruptWorld()
    world.producer.begin_transaction()
    world.producer.produce("t", "a")
    world.producer.prepare_transaction()
    operation = world.driver.simulated.engine.commit_transaction(time.monotonic())
    world.driver.give_up()
    for failed in (operation.outcome, world.producer.commit_transaction):
        with pytest.raises(AnswerLostError, match="interrupted"):
            failed()
    assert world.producer.state is ProducerState.FAILED
    world.recover()
    world.unit("next")
    assert world.committed("t") == [b"next"] * 2
