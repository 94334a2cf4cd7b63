"""gevent and eventlet: a patched program runs many units of work in green threads, and both sides agree."""

import importlib.util
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine

from dualwrite.testing.kafka import KafkaBroker
from tests.conftest import missing
from tests.support.coordinator.event_table import ready_engine, stored_values
from tests.support.coordinator.event_table import slot_rows as rows_of

SECONDS = 120
UNITS = 100
EXPECTED = sorted(str(number) for number in range(UNITS) if number % 10 != 9)


@contextmanager
def ready(url: str) -> Iterator[Engine]:
    engine = ready_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def run(library: str, url: str, broker: KafkaBroker, producer: str = "native", *, meeting: int) -> None:
    """Run the program, of whose units ``meeting`` must be open at the same time, and compare both sides."""
    if importlib.util.find_spec(library) is None:
        missing(library, "a test runs a program that it has patched")
    topic = broker.create_topic()
    words = [library, url, broker.bootstrap_servers, topic, f"a{uuid.uuid4().hex[:8]}", str(UNITS), producer]
    words.append(str(meeting))
    with ready(url) as engine:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.production.green_program", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        seen = [str(record.value, "utf-8") for record in broker.read(topic) if record.value is not None]
        assert sorted(stored_values(engine)) == sorted(seen) == EXPECTED
        assert {row.owner for row in rows_of(engine).values()} == {""}, "all slots were given back"


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
@pytest.mark.postgresql
def test_a_program_patched_by_gevent_runs_units_at_the_same_time(
    postgresql_url: str, broker: KafkaBroker, producer: str
) -> None:
    run("gevent", postgresql_url, broker, producer, meeting=2)  # psycopg waits as gevent does


@pytest.mark.slow
@pytest.mark.mariadb
def test_a_program_patched_by_gevent_runs_units_at_the_same_time_on_mariadb(
    mariadb_url: str, broker: KafkaBroker
) -> None:
    run("gevent", mariadb_url, broker, meeting=2)


@pytest.mark.slow
def test_a_program_patched_by_gevent_works_on_sqlite(sqlite_url: str, broker: KafkaBroker) -> None:
    run("gevent", sqlite_url, broker, meeting=1)  # SQLite writes for one at a time


@pytest.mark.postgresql
def test_a_program_patched_by_eventlet_works(postgresql_url: str, broker: KafkaBroker) -> None:
    """Not at the same time: psycopg does not wait as eventlet does. Its project is in maintenance, so it is no
    requirement of the tests."""
    run("eventlet", postgresql_url, broker, meeting=1)
