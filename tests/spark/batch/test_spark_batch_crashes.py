"""Whole batches while Spark loses its driver or its executors, on threads and on clusters of processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark.batch_program import ROWS, BatchProgramPlan, run
from tests.support.spark.batches import open_slots, staged_rows
from tests.support.spark.clusters import cluster
from tests.support.spark.sessions import require_spark
from tests.support.spark.writing import SparkPlace, rows_of, values_of

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.crash, pytest.mark.usefixtures("has_spark")]

__all__ = ["cluster"]

NOBODY = ("", "")
RETURNED = 2**24
"""The option driverBytes with which the driver writes all rows."""
SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}
SMALL = {"spark.executor.memory": "512m", "spark.task.maxFailures": "4", "spark.excludeOnFailure.enabled": "false"}


@pytest.fixture(scope="module")
def has_spark() -> None:
    require_spark()


class BatchPrograms:
    """Programs that write batches to one place."""

    def __init__(self, place: SparkPlace, directory: Path) -> None:
        self.place = place
        self.directory = directory
        self.driver_bytes = 0

    def told(
        self, master: str, batches: dict[int, tuple[str, str]], way: str = "function", **settings: str
    ) -> BatchProgramPlan:
        options: dict[str, Any] = {**self.place.keywords(), "leaseTimeout": 15, "driverBytes": self.driver_bytes}
        return BatchProgramPlan(master, options, str(self.directory), batches, way, settings)

    def run(self, told: BatchProgramPlan) -> None:
        """To its end."""
        code, said = run(told)
        assert (code, said.splitlines()[-1:]) == (0, ["done"]), said[-5000:]

    def die(self, told: BatchProgramPlan) -> None:
        """Not to its end."""
        code, said = run(told)
        assert code == -9, said[-5000:]

    def judge(self, batches: int) -> None:
        rows = rows_of(batches * ROWS)
        assert self.place.stored() == rows
        assert self.place.produced() == values_of(rows)
        assert staged_rows(self.place.engine) == 0
        assert [owner for owner in open_slots(self.place.engine) if "run-" in owner] == []


@pytest.fixture
def world(postgresql_place: SparkPlace, tmp_path: Path) -> BatchPrograms:
    return BatchPrograms(postgresql_place, tmp_path)


@pytest.mark.parametrize("driver_bytes", [0, RETURNED])
def test_a_driver_that_is_killed_and_started_again_writes_each_batch_once(
    world: BatchPrograms, driver_bytes: int
) -> None:
    world.driver_bytes = driver_bytes
    world.die(world.told("local[2]", {0: ("driver", "COMPLETE_KAFKA")}, "source"))
    world.die(world.told("local[2]", {0: NOBODY, 1: ("driver", "COMMIT_DATABASE")}))
    world.run(world.told("local[2]", {0: NOBODY, 1: NOBODY}))
    world.judge(2)


def test_a_stream_whose_driver_is_killed_goes_on_where_it_was(world: BatchPrograms) -> None:
    source = world.directory / "in"
    source.mkdir()
    for number, fate in enumerate([("driver", "COMPLETE_KAFKA"), NOBODY]):
        lines = [json.dumps({"id": key, "note": note}) for key, note in rows_of(ROWS, number * ROWS)]
        (source / f"{number}.json").write_text("\n".join(lines))
        told = world.told("local[2]", {number: fate}, "stream")
        world.run(told) if fate == NOBODY else world.die(told)
    world.judge(2)


def test_executors_that_are_killed_and_attempts_that_are_overtaken_count_once(world: BatchPrograms) -> None:
    fates = {0: ("executor", "PREPARE_KAFKA"), 1: ("speculation", "TRANSFER_LEASE"), 2: ("executor", "TRANSFER_LEASE")}
    world.run(world.told("local-cluster[2,1,1024]", fates, **SPECULATING, **SMALL))
    world.judge(3)


def test_a_standalone_cluster_of_two_workers_loses_an_executor(world: BatchPrograms, cluster: str) -> None:
    world.run(world.told(cluster, {0: ("executor", "TRANSFER_LEASE"), 1: NOBODY}, "source", **SMALL))
    world.judge(2)
