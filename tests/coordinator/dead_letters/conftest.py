"""A Kafka that keeps whole records, and a consumer of it."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from tests.support.coordinator.dead_letters.fake_records import KeepingKafka
from tests.support.coordinator.dead_letters.letter_reader import LetterReader


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time here."""
    made: list[float] = []
    monkeypatch.setattr("dualwrite.coordinator.process.this_process.ThisProcess.sleep", staticmethod(made.append))
    return made


@pytest.fixture
def kafka() -> KeepingKafka:
    return KeepingKafka()


@pytest.fixture(params=["stored", "committed"])
def reading(
    request: pytest.FixtureRequest,
    make_dual_write: Callable[..., DualWrite],
    kafka: KeepingKafka,
    sqlite_engine: Engine,
) -> LetterReader:
    return LetterReader(make_dual_write(), kafka, sqlite_engine, request.param)
