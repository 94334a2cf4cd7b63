"""gevent and eventlet: a patched program runs many units of work in green threads, and both sides agree."""

import importlib.util
import os
import subprocess
import sys
import uuid

import pytest
from sqlalchemy import Engine

from dualwrite.testing.kafka import KafkaBroker
from tests.conftest import missing
from tests.coordinator.databases import ready_engine, stored_values
from tests.coordinator.databases import slot_rows as rows_of

SECONDS = 120
UNITS = 100
EXPECTED = sorted(str(number) for number in range(UNITS) if number % 10 != 9)


def run(library: str, engine: Engine, broker: KafkaBroker, producer: str = "native", *, meeting: int) -> None:
    """Run the program, of whose units ``meeting`` must be open at the same time, and compare both sides."""
    if importlib.util.find_spec(library) is None:
        missing(library, "a test runs a program that it has patched")
    topic = broker.create_topic()
    url = engine.url.render_as_string(hide_password=False)
    words = [library, url, broker.bootstrap_servers, topic, f"a{uuid.uuid4().hex[:8]}", str(UNITS), producer]
    words.append(str(meeting))
    done = subprocess.run(
        [sys.executable, "-m", "tests.production.green_program", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    seen = [str(record.value, "utf-8") for record in broker.read(topic) if record.value is not None]
    assert sorted(stored_values(engine)) == sorted(seen) == EXPECTED
    assert {row.owner for row in rows_of(engine).values()} == {""}, "all slots were given back"


@pytest.mark.parametrize("producer", ["native", "librdkafka"])
@pytest.mark.postgresql
def test_a_program_patched_by_gevent_runs_units_at_the_same_time(
    postgresql_url: str, broker: KafkaBroker, producer: str
) -> None:
    engine = ready_engine(postgresql_url)
    run("gevent", engine, broker, producer, meeting=2)  # psycopg waits as gevent does
    engine.dispose()


@pytest.mark.mariadb
def test_a_program_patched_by_gevent_runs_units_at_the_same_time_on_mariadb(
    mariadb_url: str, broker: KafkaBroker
) -> None:
    engine = ready_engine(mariadb_url)
    run("gevent", engine, broker, meeting=2)
    engine.dispose()


def test_a_program_patched_by_gevent_works_on_sqlite(sqlite_url: str, broker: KafkaBroker) -> None:
    engine = ready_engine(sqlite_url)
    run("gevent", engine, broker, meeting=1)  # SQLite writes for one at a time
    engine.dispose()


@pytest.mark.postgresql
def test_a_program_patched_by_eventlet_works(postgresql_url: str, broker: KafkaBroker) -> None:
    """Not at the same time: psycopg does not wait as eventlet does. Its project is in maintenance, so it is no
    requirement of the tests."""
    engine = ready_engine(postgresql_url)
    run("eventlet", engine, broker, meeting=1)
    engine.dispose()
