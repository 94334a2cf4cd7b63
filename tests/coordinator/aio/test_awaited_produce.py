"""Records under asyncio: most are added in the event loop's thread, and calls that may wait use another thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite.coordinator.aio.awaited_slot import IN_A_ROW
from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.ports.kafka import KafkaParticipant, ProducesAtOnce
from dualwrite.errors import InvalidTransactionStateError, KafkaRefusedError
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write_unit
from tests.support.coordinator.event_table import CONFIG
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant
from tests.support.forked import ForkedKafkaBroker

PARTICIPANTS: list[Callable[[Any], KafkaParticipant]] = [NativeProducer, LibrdkafkaProducer]


class AtOnce(FakeParticipant):
    """A FakeParticipant with which records can be added at once, as long as there is room."""

    def __init__(self, kafka: FakeKafka, threads: list[str]) -> None:
        super().__init__(kafka)
        self.room = 1000
        self._threads = threads

    def produce(self, record: OutgoingRecord) -> None:
        self._threads.append("another" if threading.current_thread() is not threading.main_thread() else "the loop's")
        super().produce(record)

    def produce_at_once(self, record: OutgoingRecord) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.produce(record)
        return True


def with_records(place: AsyncPlace, *acts: Callable[[AsyncTransaction], Any], room: int = 1000) -> list[str]:
    """A unit of work with ``acts``; which threads its records were added in."""
    threads: list[str] = []

    def make(config: object) -> AtOnce:
        participant = AtOnce(place.kafka, threads)
        participant.room = room
        return participant

    async def main() -> None:
        async with place.dual_write(participant=make) as dual_write:
            await write_unit(dual_write, *acts)

    run(main())
    return threads


async def produce(tx: AsyncTransaction, count: int, **more: Any) -> None:
    for number in range(count):
        await tx.produce("events", f"{number}", **more)


def test_records_are_added_in_the_loops_thread(sqlite_place: AsyncPlace) -> None:
    assert with_records(sqlite_place, lambda tx: produce(tx, 3)) == ["the loop's"] * 3
    assert sqlite_place.kafka.committed == ["0", "1", "2"]


def test_a_record_that_must_wait_for_room_is_produced_in_another_thread(sqlite_place: AsyncPlace) -> None:
    threads = with_records(sqlite_place, lambda tx: produce(tx, 4), room=2)
    assert threads == ["the loop's", "the loop's", "another", "another"]
    assert sqlite_place.kafka.committed == ["0", "1", "2", "3"]


def test_the_loop_has_its_turn(sqlite_place: AsyncPlace) -> None:
    turns = [0]

    async def many(tx: AsyncTransaction) -> None:
        await produce(tx, 1)

        async def count() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        await asyncio.sleep(0)
        begin = turns[0]
        await produce(tx, 3 * (IN_A_ROW + 1))
        turns[0] -= begin
        other.cancel()

    assert with_records(sqlite_place, many).count("another") == 3
    assert turns[0] >= 3


def test_a_callback_is_called_in_the_loops_thread_however_the_record_was_added(sqlite_place: AsyncPlace) -> None:
    told: list[bool] = []

    def on_delivery(error: Any, message: Any) -> None:
        told.append(threading.current_thread() is threading.main_thread())

    with_records(sqlite_place, lambda tx: produce(tx, 4, on_delivery=on_delivery), room=2)
    assert told == [True] * 4


def test_a_record_is_added_to_no_unit_of_which_another_call_was_cancelled(sqlite_place: AsyncPlace) -> None:
    """That call may be under way in its thread, and a participant is not thread-safe."""
    began, go_on = threading.Event(), threading.Event()

    def wait(request: str) -> None:
        if request == "produce" and not began.is_set():
            began.set()
            assert go_on.wait(20)

    async def cancelled(tx: AsyncTransaction) -> None:
        task = asyncio.create_task(tx.produce("events", "one"))
        await asyncio.to_thread(began.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(InvalidTransactionStateError, match="can only be aborted"):
            await tx.produce("events", "two")
        go_on.set()

    sqlite_place.kafka.before_effect = wait

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(InvalidTransactionStateError):
                await write_unit(dual_write, cancelled)

    run(main())
    assert sqlite_place.kafka.committed == []


# The real ones.


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    directory: Path = tmp_path_factory.mktemp("broker")
    with ForkedKafkaBroker(directory / "broker") as broker:
        yield broker


@pytest.mark.parametrize("make", PARTICIPANTS)
@pytest.mark.parametrize(
    "settings", [{}, {"queue.buffering.max.messages": 7}, {"batch.size": 300, "batch.num.messages": 5}]
)
def test_all_records_arrive_in_order_whatever_is_full(
    broker: KafkaBroker, sqlite_place: AsyncPlace, make: Any, settings: dict[str, Any]
) -> None:
    topic = f"{make.__name__}-{'-'.join(settings)}"
    broker.create_topic(topic)
    told: list[Any] = []

    async def main() -> None:
        async with sqlite_place.engine() as engine:
            config = {**CONFIG, **broker.client_config, **settings}
            async with AsyncDualWrite(engine, config, application=topic, participant=make) as dual_write:
                for unit in range(2):
                    async with dual_write.transaction() as tx:
                        for number in range(250):
                            record = f"{unit}-{number}"
                            await tx.produce(topic, record, on_delivery=lambda error, _: told.append(error))

    run(main())
    values = [(record.value or b"").decode() for record in broker.read(topic, minimum=500)]
    assert values == [f"{unit}-{number}" for unit in range(2) for number in range(250)]
    assert told == [None] * 500


async def too_large(tx: AsyncTransaction) -> None:
    await tx.produce("refused", b"x" * 3000)


@pytest.mark.parametrize("make", PARTICIPANTS)
def test_a_record_that_is_refused_at_once_fails_its_unit_and_not_the_next(
    broker: KafkaBroker, sqlite_place: AsyncPlace, make: Any
) -> None:
    config = {**broker.client_config, "message.max.bytes": 2000}
    assert isinstance(make({**config, "transactional.id": "some"}), ProducesAtOnce)

    async def main() -> None:
        async with sqlite_place.engine() as engine:
            options: dict[str, Any] = {"application": f"refused-{make.__name__}", "participant": make}
            async with AsyncDualWrite(engine, config, **options) as dual_write:
                with pytest.raises(KafkaRefusedError, match=r"refused|TOO_LARGE|max.bytes"):
                    await write_unit(dual_write, lambda tx: tx.produce("refused", b"a"), too_large)
                await write_unit(dual_write, lambda tx: tx.produce("refused", b"b"))

    run(main())
    assert [record.value for record in broker.read("refused", minimum=1)][-1] == b"b"
