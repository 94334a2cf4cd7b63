"""What is used in a wrong way says so, with the right one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDualWrite, ConfigurationError, DualWrite, InvalidTransactionStateError
from tests.support.coordinator.event_table import CONFIG, ready_engine
from tests.support.coordinator.fake_kafka import FakeKafka


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


def test_the_name_of_a_setting_with_an_underscore_is_recognised() -> None:
    with pytest.raises(ConfigurationError, match=r'"bootstrap_servers" is not a setting: write "bootstrap\.servers"'):
        DualWrite(create_engine("sqlite:///x.db"), {"bootstrap_servers": "b:1"}, application="a")
