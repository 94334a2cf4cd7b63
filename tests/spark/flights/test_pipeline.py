"""The flights' pipeline of examples/spark_flights.py, in real processes that are killed with SIGKILL."""

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.spark.flights import source
from tests.spark.flights.answer import Delays, compare_table
from tests.spark.flights.pipeline import ALONE, UnavailableError, spark_command, spark_environment
from tests.spark.flights.world import VICTIMS, World, plan
from tests.support.servers.postgresql import PostgreSQL

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

PROGRAMS = Path(__file__).parent
ROWS = 6_000


@pytest.fixture(autouse=True)
def _spark(tmp_path: Path) -> None:
    try:
        spark_environment(tmp_path)
        spark_command(PROGRAMS / "query.py", [], {})
    except UnavailableError as missing:
        if "spark" in os.environ.get("DUALWRITE_REQUIRE", ""):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture
def world(tmp_path: Path, own_postgresql: PostgreSQL) -> Iterator[World]:
    with World(tmp_path, own_postgresql, source.flights(tmp_path, ROWS)) as made:
        yield made


@pytest.mark.crash
@pytest.mark.postgresql
def test_the_result_is_right_when_each_kind_of_process_is_killed(world: World) -> None:
    said: list[str] = []
    world.start(batches=7)
    world.run(plan(len(VICTIMS), ROWS, random.Random(7)), said.append)
    table, topic = world.judge()
    assert (table.wrong, topic.wrong) == ({}, {}), (table.examples, topic.examples, said)
    assert table.rows > 200
    assert topic.records > table.rows, "no row was changed by a second batch"
    assert [line for line in said if "too late" in line] == []
    assert sum("while a batch was written" in line for line in said) >= 2, said


@pytest.mark.postgresql
def test_a_pipeline_that_fails_without_a_kill_is_not_restarted(world: World, tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text("raise SystemExit('there is nothing to be done')")
    world.start(1, program=program, settings=ALONE)
    with pytest.raises(AssertionError, match="there is nothing to be done"):
        world.run([], print)
    assert world.pipeline.starts == 1


@pytest.mark.crash
@pytest.mark.postgresql
@pytest.mark.parametrize("variables", [{}, {"IN_TWO_ACTS": "1"}], ids=["dual write", "two acts"])
def test_a_batch_that_spark_runs_again_is_written_once(world: World, variables: dict[str, str]) -> None:
    """And without a dual write it is not, which is found."""
    world.killed = 1  # by its own hand
    world.start(3, program=PROGRAMS / "dying.py", settings=ALONE, variables=variables)
    world.run([], print)
    assert world.gave_up == 1
    table, topic = world.judge()
    assert table.wrong == {}, table.examples
    assert set(topic.wrong) == ({"record twice"} if variables else set()), topic.examples


def test_the_query_is_right_of_what_was_committed(
    tmp_path: Path, kafka_broker_factory: Callable[[], KafkaBroker]
) -> None:
    """And with everything that is in the topics it is wrong, which is found."""
    flights = source.flights(tmp_path, ROWS)
    broker = kafka_broker_factory()
    source.fill(broker, flights)
    command = spark_command(PROGRAMS / "query.py", [broker.bootstrap_servers], ALONE)
    environment = spark_environment(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    expected = Delays(source.airlines(), source.airports())
    for each in flights:
        expected.add(each)
    committed, uncommitted = (
        compare_table(expected.rows, map(json.loads, (tmp_path / level).read_text(encoding="utf-8").splitlines()))
        for level in ("read_committed", "read_uncommitted")
    )
    assert committed.wrong == {}, committed.examples
    assert committed.rows > 200
    assert uncommitted.wrong["row with another value"] > 0
