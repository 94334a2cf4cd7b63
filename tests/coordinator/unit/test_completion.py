"""completion="background": a unit of work is over when its commit is sent; the answer is collected later."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDualWrite, EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.tables import kafka_transaction_state as state_table
from dualwrite.errors import AnswerLostError, ConfigurationError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey
from tests.support.coordinator.aio.async_dual_writes import LONG, AsyncPlace, run
from tests.support.coordinator.aio.async_dual_writes import write_unit as write_async_unit
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.usual_unit import write, write_unit
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.consumers import consume
from tests.support.servers.holding_proxy import HoldingProxy
from tests.support.thread_starts import fail_starts
from tests.support.waiting import eventually

Make = Callable[..., DualWrite]
QUIET = 3600.0
"""A lease_timeout that lets no heartbeat come in between."""


@pytest.fixture
def dual_write(make_dual_write: Make, kafka: FakeKafka) -> DualWrite:
    """Kafka carries out a commit only when its answer is awaited."""
    kafka.is_slow = lambda: True
    made = make_dual_write(completion="background", lease_timeout=QUIET)
    made.recover()
    kafka.requests.clear()
    return made


def failing(request: str, times: int = 1) -> Callable[[str], Fault]:
    left = [times]

    def fault(asked: str) -> Fault:
        if asked == request and left[0]:
            left[0] -= 1
            return Fault.BEFORE
        return Fault.NONE

    return fault


def test_a_unit_is_over_before_its_commit_is_answered_and_the_next_one_waits_for_it(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    write_unit(dual_write, "one")
    assert (dual_write.counters.committed, dual_write.pending(), kafka.committed) == (1, 1, [])
    write_unit(dual_write, "two")
    assert kafka.committed == ["one"]
    requests = ["begin", "produce", "prepare", "send commit"]
    assert kafka.requests == [*requests, "collect", *requests]
    assert stored_values(sqlite_engine) == ["one", "two"]
    assert dual_write.pending() == 1


def test_the_next_unit_waits_no_earlier_than_at_its_first_record(dual_write: DualWrite, kafka: FakeKafka) -> None:
    write_unit(dual_write, "one")
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="two"))
        assert kafka.committed == []
        tx.produce("events", value="two")
        assert kafka.committed == ["one"]


def test_an_answer_that_is_there_is_collected_as_the_next_unit_begins(dual_write: DualWrite, kafka: FakeKafka) -> None:
    kafka.is_slow = lambda: False
    write_unit(dual_write, "one")
    with dual_write.transaction():
        assert kafka.requests[-1] == "collect"
    assert dual_write.pending() == 0


def test_a_unit_without_records_leaves_the_earlier_commit_pending(dual_write: DualWrite, kafka: FakeKafka) -> None:
    write_unit(dual_write, "one")
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="alone"))
    assert (dual_write.pending(), kafka.committed) == (1, [])
    write_unit(dual_write, "two")
    assert kafka.committed == ["one"]


def test_wait_idle_waits_for_the_answer(dual_write: DualWrite, kafka: FakeKafka) -> None:
    write_unit(dual_write, "one")
    assert dual_write.wait_idle(20)
    assert (dual_write.pending(), kafka.committed) == (0, ["one"])


def test_close_waits_for_the_answer_and_gives_the_slot_back_finished(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    write_unit(dual_write, "one")
    dual_write.close()
    assert kafka.committed == ["one"]
    assert kafka.open_participants() == 0
    with sqlite_engine.connect() as connection:
        assert connection.scalars(select(state_table.c.owner)).all() == [""]


def test_a_close_that_can_start_no_thread_gives_the_slot_back_unfinished(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a handler of ``atexit`` from Python 3.12 on."""
    write_unit(dual_write, "one")
    fail_starts(monkeypatch, RuntimeError("can't create new thread at interpreter shutdown"))
    dual_write.close(timeout=0)
    assert kafka.open_participants() == 0
    with sqlite_engine.connect() as connection:
        row = connection.execute(select(state_table)).one()
    assert row.owner, "recovery has to complete its unit"
    assert row.lease_expires_at < row.updated_at + timedelta(seconds=QUIET / 2)


def test_the_heartbeat_collects_the_answer_of_an_idle_slot(make_dual_write: Make, kafka: FakeKafka) -> None:
    kafka.is_slow = lambda: True
    dual_write = make_dual_write(completion="background", lease_timeout=0.3)
    write_unit(dual_write, "one")
    assert eventually(dual_write.pending, lambda pending: pending == 0) == 0
    assert kafka.committed == ["one"]


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_commit_that_was_lost_is_completed_by_recovery(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine, is_slow: bool
) -> None:
    kafka.is_slow = lambda: is_slow
    write_unit(dual_write, "one")
    kafka.fault = failing("collect")
    assert dual_write.wait_idle(20)
    assert kafka.committed == ["one"]
    assert (dual_write.counters.finished_later, dual_write.counters.recoveries) == (1, 2)
    write_unit(dual_write, "two")
    assert dual_write.wait_idle(20)
    assert kafka.committed == stored_values(sqlite_engine) == ["one", "two"]


def test_a_lost_commit_known_before_the_next_unit_does_not_affect_that_unit(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    kafka.is_slow = lambda: False
    write_unit(dual_write, "one")
    kafka.fault = failing("collect")
    write_unit(dual_write, "two")
    assert dual_write.wait_idle(20)
    assert kafka.committed == stored_values(sqlite_engine) == ["one", "two"]
    assert dual_write.counters.rolled_back == 0


@pytest.mark.parametrize(
    "lost", [AnswerLostError("EndTxn (commit): no answer in 2 s"), KafkaRefusedError("EndTxn (commit)", 48, "REFUSED")]
)
def test_a_lost_commit_found_in_the_next_unit_rolls_it_back_and_is_completed(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine, lost: Exception
) -> None:
    write_unit(dual_write, "one")
    left = [lost]

    def lose(request: str) -> None:
        if request == "collect" and left:
            raise left.pop()

    kafka.before_effect = lose
    with pytest.raises(KafkaUnavailableError) as raised:
        write_unit(dual_write, "two")
    assert (type(raised.value), raised.value.retriable) == (KafkaUnavailableError, True)
    assert "orders-0: the commit of the slot's earlier unit of work was not confirmed (EndTxn" in str(raised.value)
    assert dual_write.wait_idle(20)
    assert kafka.committed == stored_values(sqlite_engine) == ["one"]
    write_unit(dual_write, "two")
    assert dual_write.wait_idle(20)
    assert kafka.committed == stored_values(sqlite_engine) == ["one", "two"]


def test_a_commit_that_cannot_be_sent_is_left_to_recovery(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    kafka.fault = failing("send commit")
    write_unit(dual_write, "one")
    assert dual_write.counters.finished_later == 1
    assert dual_write.wait_idle(20)
    assert kafka.committed == stored_values(sqlite_engine) == ["one"]


def test_an_interrupt_while_an_answer_is_awaited_reaches_the_caller_and_loses_nothing(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    write_unit(dual_write, "one")

    def interrupt(request: str) -> None:
        if request == "collect":
            kafka.before_effect = lambda request: None
            raise KeyboardInterrupt

    kafka.before_effect = interrupt
    with pytest.raises(KeyboardInterrupt):
        write_unit(dual_write, "two")
    assert dual_write.wait_idle(20)
    assert kafka.committed == stored_values(sqlite_engine) == ["one"]


def test_a_participant_that_is_given_up_after_it_has_sent_a_commit_is_recovered(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(kafka.participants[-1]), "is_reusable", False)
    write_unit(dual_write, "one")
    assert dual_write.wait_idle(20)
    assert kafka.committed == stored_values(sqlite_engine) == ["one"]


def test_a_unit_without_records_leaves_an_earlier_lost_commit_to_recovery(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_unit(dual_write, "one")
    monkeypatch.setattr(type(kafka.participants[-1]), "is_reusable", False)
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="alone"))
    monkeypatch.undo()
    assert dual_write.wait_idle(20)
    assert kafka.committed == ["one"]
    assert stored_values(sqlite_engine) == ["one", "alone"]


def test_a_close_that_does_not_wait_leaves_the_participant_to_the_thread_that_uses_it(
    dual_write: DualWrite, kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    write_unit(dual_write, "one")
    asked, answers = threading.Event(), threading.Event()

    def hold(request: str) -> None:
        if request == "collect":
            asked.set()
            answers.wait(20)

    kafka.before_effect = hold
    manager_of(dual_write).process.pool.beat()
    assert asked.wait(20)
    dual_write.close(timeout=0)
    assert "closed, and 1 unit of work is not finished in Kafka (orders-0)" in caplog.text
    assert kafka.open_participants() == 1
    answers.set()
    assert eventually(kafka.open_participants, lambda count: count == 0) == 0
    assert kafka.committed == ["one"]


def test_a_slot_that_is_lost_meanwhile_is_left_to_its_new_owner(
    dual_write: DualWrite, make_dual_write: Make, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    write_unit(dual_write, "one")
    expire_leases(sqlite_engine)
    successor = make_dual_write()
    successor.recover()
    assert kafka.committed == ["one"]
    manager_of(dual_write).process.pool.beat()
    assert dual_write.pending() == 0
    write_unit(successor, "two")
    assert kafka.committed == stored_values(sqlite_engine) == ["one", "two"]


# --- what is refused


class Plain:
    """A participant without the methods."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    is_reusable = True

    def __getattr__(self, name: str) -> Any:
        if name in ("send_commit", "collect_commit", "is_committing"):
            raise AttributeError(name)
        return getattr(self.inner, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"completion": "later"}, "completion 'later': use 'await' or 'background'"),
        ({"completion": "background", "producer": "librdkafka"}, "needs the native producer, .* is librdkafka: "),
        ({"completion": "background", "two_phase": "resume", "replay": True}, "and replay=True: the records of a unit"),
    ],
)
@pytest.mark.parametrize("cls", [DualWrite, AsyncDualWrite])
def test_impossible_completion_settings_are_refused_at_once(
    options: dict[str, Any], message: str, cls: Any, sqlite_url: str
) -> None:
    engine = ready_engine(sqlite_url)
    made = engine if cls is DualWrite else create_async_engine(sqlite_url.replace("sqlite", "sqlite+aiosqlite"))
    with pytest.raises(ConfigurationError, match=message):
        cls(made, CONFIG, application="orders", **options)
    engine.dispose()


def test_a_participant_that_always_waits_is_refused_at_its_first_use(make_dual_write: Make, kafka: FakeKafka) -> None:
    dual_write = make_dual_write(completion="background", participant=lambda config: Plain(kafka.participant(config)))
    with pytest.raises(ConfigurationError, match="needs the native producer, and this one is Plain: librdkafka and"):
        write_unit(dual_write, "one")
    assert (kafka.open_participants(), kafka.committed) == (0, [])


# --- on the broker


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[HoldingProxy, EmbeddedBroker]]:
    proxy = HoldingProxy(ApiKey.END_TXN, number=2, cuts=False)
    at = f"PLAINTEXT://127.0.0.1:{proxy.port}"
    with ForkedBroker(tmp_path / "broker", config={"advertised.listeners": at}) as broker:
        proxy.broker_port = int(broker.bootstrap_servers.rpartition(":")[2])
        yield proxy, broker
    proxy.close()


@pytest.mark.slow
def test_a_unit_does_not_wait_for_a_coordinator_that_is_slow(
    proxied: tuple[HoldingProxy, EmbeddedBroker], sqlite_engine: Engine
) -> None:
    proxy, broker = proxied
    config = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "socket.timeout.ms": 1000, "retry.backoff.ms": 10}
    with DualWrite(
        sqlite_engine, config, application="orders", completion="background", lease_timeout=QUIET
    ) as dual_write:
        write_unit(dual_write, "one")
        with dual_write.transaction() as tx:
            write(tx, "two")
        assert proxy.held.wait(20)  # the commit of "two", which the broker has not got
        assert dual_write.pending() == 1
        assert consume(broker.bootstrap_servers, "events", minimum=1)[0] == [b"one"]
        assert dual_write.wait_idle(30)  # sent again, over another connection
        assert consume(broker.bootstrap_servers, "events", minimum=2)[0] == [b"one", b"two"]
        assert dual_write.counters.finished_later == 0


def test_an_asyncio_unit_is_over_before_its_commit_is_answered(sqlite_place: AsyncPlace, tmp_path: Path) -> None:
    async def units(bootstrap_servers: str) -> None:
        async with sqlite_place.engine() as engine:
            config = {"bootstrap.servers": bootstrap_servers}
            async with AsyncDualWrite(
                engine, config, application="orders", completion="background", lease_timeout=QUIET
            ) as dual_write:
                for value in ("one", "two", "three"):
                    async with dual_write.transaction() as tx:
                        await tx.execute(insert(events).values(value=value))
                        await tx.produce("events", value)
                    assert dual_write.pending() == 1

    with ForkedBroker(tmp_path / "broker") as broker:
        run(units(broker.bootstrap_servers))
        assert consume(broker.bootstrap_servers, "events", minimum=3)[0] == [b"one", b"two", b"three"]
    assert stored_values(sqlite_place.seen) == ["one", "two", "three"]


def test_a_task_that_is_cancelled_while_its_unit_waits_for_an_answer_loses_nothing(sqlite_place: AsyncPlace) -> None:
    kafka = sqlite_place.kafka
    kafka.is_slow = lambda: True

    async def units() -> None:
        async with sqlite_place.dual_write(completion="background", lease_timeout=QUIET) as dual_write:
            await write_async_unit(dual_write, "one")
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()

            def cancel(request: str) -> None:
                if request == "collect":
                    kafka.before_effect = lambda request: None
                    loop.call_soon_threadsafe(task.cancel)

            kafka.before_effect = cancel
            with pytest.raises(asyncio.CancelledError):
                await write_async_unit(dual_write, "two", lambda tx: asyncio.sleep(LONG))

    run(units())
    assert kafka.committed == stored_values(sqlite_place.seen) == ["one"]


def test_an_asyncio_unit_that_meets_an_earlier_lost_answer_may_be_run_again(sqlite_place: AsyncPlace) -> None:
    kafka = sqlite_place.kafka
    kafka.is_slow = lambda: True

    async def units() -> None:
        async with sqlite_place.dual_write(completion="background", lease_timeout=QUIET) as dual_write:
            await write_async_unit(dual_write, "one")
            kafka.fault = failing("collect")
            with pytest.raises(KafkaUnavailableError, match="commit of the slot's earlier unit of work") as raised:
                await write_async_unit(dual_write, "two")
            assert raised.value.retriable
            await write_async_unit(dual_write, "two")

    run(units())
    assert kafka.committed == stored_values(sqlite_place.seen) == ["one", "two"]


def test_a_lost_commit_known_before_the_next_asyncio_unit_does_not_affect_that_unit(sqlite_place: AsyncPlace) -> None:
    kafka = sqlite_place.kafka
    kafka.is_slow = lambda: False

    async def units() -> None:
        async with sqlite_place.dual_write(completion="background", lease_timeout=QUIET) as dual_write:
            await write_async_unit(dual_write, "one")
            kafka.fault = failing("collect")
            await write_async_unit(dual_write, "two")
            assert dual_write.counters.recoveries == 2

    run(units())
    assert kafka.committed == stored_values(sqlite_place.seen) == ["one", "two"]
