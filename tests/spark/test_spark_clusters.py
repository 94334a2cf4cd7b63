"""Real executors: a standalone cluster of two workers, a local cluster, speculation, executors that are killed or that
Spark only believes to be dead, and a stream whose driver is killed."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.spark.clusters import cluster
from tests.support.spark.driver import DriverProcess, await_file
from tests.support.spark.writing import PATIENCE, SparkPlace, rows_of, values_of
from tests.support.waiting import eventually

__all__ = ["cluster"]

pytestmark = [pytest.mark.postgresql, pytest.mark.slow, pytest.mark.crash]

SOON = {"spark.network.timeout": "15s", "spark.network.timeoutInterval": "1s", "spark.executor.heartbeatInterval": "2s"}
"""An executor that says nothing is soon believed to be dead."""
SMALL = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"}
SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.fixture(scope="module")
def driver(cluster: str) -> Iterator[DriverProcess]:
    with DriverProcess(cluster, **SMALL, **SOON) as made:
        yield made


@pytest.fixture
def place(postgresql_place: SparkPlace) -> SparkPlace:
    return postgresql_place


def begin_held(driver: DriverProcess, place: SparkPlace, directory: Path, partitions: int = 2) -> None:
    """Let ``driver`` write 50 rows in each partition; the first attempt of partition 0 stops in the middle."""
    told = {"rows": 50 * partitions, "partitions": partitions, "directory": str(directory)}
    driver.begin("partitions", options=place.keywords(), **told)
    await_file(directory / "begun-0-0")


def executor_of(directory: Path, attempt: str) -> psutil.Process:
    """The JVM of the executor that runs ``attempt``: the grandparent of its Python worker."""
    daemon = psutil.Process(int((directory / f"begun-{attempt}").read_text())).parent()
    assert daemon is not None
    executor = daemon.parent()
    assert executor is not None
    assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
    return executor


def suspend(process: psutil.Process) -> None:
    """Stop a process, and wait until each of its threads stands still: on a busy machine some still run for a while."""
    process.suspend()

    def is_stopped() -> bool:
        stats = [path.read_text() for path in Path("/proc", str(process.pid), "task").glob("*/stat")]
        return all(stat.rpartition(") ")[2].startswith("T") for stat in stats)

    assert eventually(is_stopped)


def require_once(place: SparkPlace, rows: int) -> None:
    assert place.stored() == rows_of(rows)
    assert place.produced() == values_of(rows_of(rows))


def test_executors_write_and_write_nothing_again(driver: DriverProcess, place: SparkPlace) -> None:
    for _ in range(2):
        driver.begin("batch", options=place.keywords(), rows=100, partitions=4)
        assert driver.end() == "done"
    require_once(place, 100)


def test_a_partition_is_written_once_when_its_executor_is_killed(
    driver: DriverProcess, place: SparkPlace, tmp_path: Path
) -> None:
    begin_held(driver, place, tmp_path)
    executor_of(tmp_path, "0-0").kill()
    await_file(tmp_path / "begun-0-1")
    assert driver.end() == "done"
    assert not (tmp_path / "ended-0-0").exists()
    require_once(place, 100)


def test_an_executor_that_spark_believes_to_be_dead_writes_and_the_next_attempt_does_not(
    driver: DriverProcess, place: SparkPlace, tmp_path: Path
) -> None:
    begin_held(driver, place, tmp_path)
    await_file(tmp_path / "ended-1-0")
    executor = executor_of(tmp_path, "0-0")
    try:
        suspend(executor)
        (tmp_path / "go").touch()
        await_file(tmp_path / "ended-0-0")  # it has committed, and nobody can be told
        assert driver.end() == "done"
        assert (tmp_path / "ended-0-1").exists()
    finally:
        executor.kill()
    require_once(place, 100)


def test_a_speculative_copy_of_a_task_writes_nothing_again(cluster: str, place: SparkPlace, tmp_path: Path) -> None:
    with DriverProcess(cluster, **SMALL, **SPECULATIVE) as speculating:
        begin_held(speculating, place, tmp_path, partitions=4)
        assert eventually(lambda: is_waiting(place), patience=PATIENCE)
        (tmp_path / "go").touch()
        assert speculating.end() == "done"
        require_once(place, 200)


def test_a_local_cluster_writes_a_batch_once(place: SparkPlace) -> None:
    with DriverProcess("local-cluster[2,1,1024]", **SMALL) as driver:
        for _ in range(2):
            driver.begin("batch", options=place.keywords(), rows=100, partitions=4)
            assert driver.end() == "done"
    require_once(place, 100)


def is_waiting(place: SparkPlace) -> bool:
    """True if the other attempt waits for the first one's row."""
    with place.engine.connect() as connection:
        asked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return bool(connection.exec_driver_sql(asked).scalar())


def test_a_stream_whose_driver_is_killed_after_a_batch_is_written_and_before_spark_knows(
    place: SparkPlace, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for batch in range(3):
        lines = [f'{{"id":{key},"note":"{note}"}}' for key, note in rows_of(10, 10 * batch)]
        (source / f"{batch}.json").write_text("\n".join(lines))
        os.utime(source / f"{batch}.json", (batch, batch))
    told = {"source": str(source), "checkpoint": str(tmp_path / "checkpoint"), "directory": str(tmp_path)}
    with DriverProcess("local[2]") as first:
        first.begin("stream", options=place.keywords(), hangs_at=1, **told)
        await_file(tmp_path / "hanging")
        first.kill()
    require_once(place, 20)
    assert sorted(path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == ["0"]
    with DriverProcess("local[2]") as second:
        second.begin("stream", options=place.keywords(), **told)
        assert second.end() == "done"
    require_once(place, 30)
