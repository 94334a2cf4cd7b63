"""Dual writes through SIGKILL of the application and of its database server, PostgreSQL or MariaDB."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from tests.support.crash.world import CrashWorld
from tests.support.servers.databases import SERVERS
from tests.support.servers.mariadb import MariaDB
from tests.support.servers.postgresql import PostgreSQL

pytestmark = [pytest.mark.crash, pytest.mark.slow]

STEPS = ["BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA"]
KILLS = 10
ENOUGH = 20
"""Successful units that a test of random kills waits for."""
SLOWEST = 10
"""How many times slower a machine may be."""


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> MariaDB | PostgreSQL:
    found: MariaDB | PostgreSQL = request.getfixturevalue(f"own_{request.param}")
    return found


@pytest.fixture
def world(tmp_path: Path, server: MariaDB | PostgreSQL) -> Iterator[CrashWorld]:
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE crash")
    engine.dispose()
    url = make_url(server.url).set(database="crash").render_as_string()
    made = CrashWorld(tmp_path, url, "native")
    yield made
    made.close()


def test_application_and_database_killed_at_each_step_of_a_unit(
    world: CrashWorld, server: MariaDB | PostgreSQL
) -> None:
    for step in STEPS:
        world.kill_at(step, unit=2)
        world.kill_at(step, unit=2, on_pause=server.kill)
        server.start()
    world.recover()
    world.engine.dispose()  # of connections to the servers that were
    assert world.judge() == []
    assert len(world.told.ok) >= 5


def test_random_kills_of_the_database_under_a_running_application(
    world: CrashWorld, server: MariaDB | PostgreSQL
) -> None:
    """The application ends with the error of its database, or is killed, too; and is started again. On a busy machine
    the kills come later, until enough has happened between them."""
    chance = random.Random(11)
    for number in count():
        if number >= KILLS and len(world.told.ok) > ENOUGH:
            break
        slowness = 1 + number // KILLS
        assert slowness < SLOWEST, "hardly anything happened"
        killer = threading.Timer(slowness * chance.uniform(0.2, 1.5), server.kill)
        task = replace(world.task, seed=chance.randrange(10**6))
        world.run(task, kill_after=slowness * chance.uniform(0.5, 4), on_start=killer.start)
        killer.join()
        server.start()
    world.recover()
    world.engine.dispose()
    assert world.judge() == []
