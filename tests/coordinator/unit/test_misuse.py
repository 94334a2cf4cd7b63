"""What is used in a wrong way says so, with the right one."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDualWrite, ConfigurationError, DualWrite, InvalidTransactionStateError, Transaction
from dualwrite.errors import PrepareFailedError
from dualwrite.ids import PreparedTxnState
from tests.support.coordinator.event_table import CONFIG, ready_engine
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant
from tests.support.coordinator.usual_unit import in_both, write, write_unit


def nothing() -> None:
    """Takes no tx."""


async def nothing_async() -> None:
    """Takes no tx."""


@pytest.fixture
def blocking() -> DualWrite:
    return DualWrite(
        create_engine("sqlite:///nowhere.db"), CONFIG, application="a", participant=FakeKafka().participant
    )


@pytest.fixture
def asynchronous() -> AsyncDualWrite:
    engine = create_async_engine("sqlite+aiosqlite:///nowhere.db")
    return AsyncDualWrite(engine, CONFIG, application="a", participant=FakeKafka().participant)


def test_async_with_is_refused_by_a_blocking_dual_write(blocking: Any) -> None:
    async def main() -> None:
        async with blocking.transaction():
            raise AssertionError

    with pytest.raises(TypeError, match="a unit of work of a DualWrite is a `with` block"):
        asyncio.run(main())


def test_a_blocking_unit_is_refused_in_a_thread_that_runs_an_event_loop(make_dual_write: Any) -> None:
    dual_write = make_dual_write()

    @dual_write.transactional
    def decorated(tx: Transaction) -> None:
        raise AssertionError

    def block() -> None:
        with dual_write.transaction():
            raise AssertionError

    async def main() -> None:
        for unit in (block, decorated):
            with pytest.raises(InvalidTransactionStateError, match="use AsyncDualWrite there"):
                unit()

    asyncio.run(main())
    assert dual_write.counters.units == 0
    write_unit(dual_write, "one")


def test_a_thread_of_an_event_loop_may_run_a_blocking_unit(make_dual_write: Any, kafka: FakeKafka) -> None:
    dual_write = make_dual_write()
    asyncio.run(asyncio.to_thread(write_unit, dual_write, "one"))
    assert kafka.committed == ["one"]


def test_a_cell_of_a_notebook_may_run_a_blocking_unit(
    make_dual_write: Any, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))

    async def cell() -> None:
        write_unit(make_dual_write(), "one")

    asyncio.run(cell())
    assert kafka.committed == ["one"]


@pytest.mark.parametrize(
    "use",
    [
        lambda tx: tx.produce("events", "two"),
        lambda tx: tx.execute(text("SELECT 1")),
        lambda tx: tx.connection,
        lambda tx: tx.session,
    ],
    ids=["produce", "execute", "connection", "session"],
)
def test_a_tx_is_refused_in_another_thread(make_dual_write: Any, kafka: FakeKafka, use: Any) -> None:
    dual_write = make_dual_write()
    with ThreadPoolExecutor(1) as other, dual_write.transaction() as tx:
        write(tx, "one")
        with pytest.raises(InvalidTransactionStateError, match="another thread uses it"):
            other.submit(use, tx).result()
    assert kafka.committed == ["one"], "the unit goes on in its own thread"


def test_plain_with_is_refused_by_an_async_dual_write(asynchronous: Any) -> None:
    said = "a unit of work of an AsyncDualWrite is an `async with` block"
    with pytest.raises(TypeError, match=said), asynchronous.transaction():
        raise AssertionError


def test_a_function_that_takes_no_tx_is_refused_when_it_is_decorated(blocking: Any, asynchronous: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^nothing: its first parameter must be tx$"):
        blocking.transactional(nothing)
    with pytest.raises(ConfigurationError, match=r"^nothing: its first parameter must be tx$"):
        blocking.transactional(retries=3)(nothing)
    with pytest.raises(ConfigurationError, match=r"^nothing_async: its first parameter must be tx$"):
        asynchronous.transactional(nothing_async)
    blocking.transactional(lambda *anything: None)


def test_a_tx_after_its_block_says_how_the_unit_ended(tmp_path: Path) -> None:
    engine = ready_engine(f"sqlite:///{tmp_path / 'app.db'}")
    with DualWrite(engine, CONFIG, application="a", participant=FakeKafka().participant) as dual_write:
        with dual_write.transaction() as tx:
            tx.produce("t", value=b"1")
        with pytest.raises(InvalidTransactionStateError, match=r"this unit of work has ended \(committed\): tx can be"):
            tx.execute(text("SELECT 1"))
        with pytest.raises(ZeroDivisionError), dual_write.transaction() as tx:
            raise ZeroDivisionError
        with pytest.raises(InvalidTransactionStateError, match=r"this unit of work has ended \(rolled back\): tx"):
            tx.execute(text("SELECT 1"))
    engine.dispose()


@pytest.mark.parametrize(
    "name", ["bootstrap_servers", "bootstrap.server", "Bootstrap.Servers", "metadata.brokers.list"]
)
@pytest.mark.parametrize("producer", [None, "native", "librdkafka"])
def test_a_misspelt_name_of_the_brokers_setting_is_recognised(name: str, producer: str | None) -> None:
    with pytest.raises(ConfigurationError, match=f'"{name}" is not a setting: write "bootstrap\\.servers"'):
        DualWrite(create_engine("sqlite:///x.db"), {name: "b:1"}, application="a", producer=producer)


@pytest.mark.parametrize("producer", [None, "native", "librdkafka"])
def test_a_setting_with_a_wrong_letter_is_recognised(producer: str | None) -> None:
    given = {"bootstrap.servers": "b:1", "linger.m": 5}
    with pytest.raises(ConfigurationError, match=r"linger\.m.*; did you mean linger\.ms\?"):
        DualWrite(create_engine("sqlite:///x.db"), given, application="a", producer=producer)


def test_a_delivery_callback_has_the_two_names_of_confluent_kafka(make_dual_write: Any, kafka: FakeKafka) -> None:
    told: list[object] = []
    dual_write = make_dual_write()
    with dual_write.transaction() as tx:
        tx.produce("events", "one", callback=lambda error, _: told.append(error))
    assert told == [None]
    with (
        pytest.raises(InvalidTransactionStateError, match="there is no record to commit"),
        dual_write.transaction() as tx,
        pytest.raises(TypeError, match="two names of one argument"),
    ):
        tx.produce("events", "two", on_delivery=print, callback=print)
    assert kafka.committed == ["one"]


def test_a_participant_that_prepares_a_transaction_without_a_name_rolls_the_unit_back(
    make_dual_write: Callable[..., DualWrite],
    sqlite_engine: Engine,
    kafka: FakeKafka,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the empty state in its row, recovery would abort the records of a unit that the database has committed."""
    monkeypatch.setattr(FakeParticipant, "prepare_transaction", lambda _: PreparedTxnState())
    with pytest.raises(PrepareFailedError, match="without an identity"):
        write_unit(make_dual_write(), "one")
    assert in_both(sqlite_engine, kafka)


def test_the_first_statement_that_was_refused_is_the_one_that_the_unit_names(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def go_on() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            for statement in ("COMMIT", "BEGIN"):
                with pytest.raises(InvalidTransactionStateError, match=statement):
                    tx.execute(text(statement))

    with pytest.raises(InvalidTransactionStateError, match="'COMMIT' is refused inside a unit of work"):
        go_on()
    assert in_both(sqlite_engine, kafka)
