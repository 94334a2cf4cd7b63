"""Runs that end while tasks write and hand over: nothing is signed by a run that is over, and nothing keeps it from
being ended."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, Engine

from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.sql.lease_transfer import TransferredLeases
from dualwrite.errors import FencedError
from dualwrite.spark.batch import runs
from dualwrite.spark.batch.runs import Run, Runs
from tests.spark.conftest import ready
from tests.support.servers.databases import SERVERS
from tests.support.spark.jobs import Jobs
from tests.support.spark.lock_waits import AT_ONCE, PATIENCE, await_waiting


class Slow(TransferredLeases):
    """Stops between the signature and the COMMIT."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.has_signed = threading.Event()
        self.may_commit = threading.Event()

    def transfer(self, connection: Connection, lease: Lease, owner: str, seconds: float) -> Lease:
        handed = super().transfer(connection, lease, owner, seconds)
        self.has_signed.set()
        assert self.may_commit.wait(PATIENCE)
        return handed


@pytest.mark.parametrize("server", SERVERS)
def test_tasks_do_not_overtake_a_driver_that_waits_to_end_their_run(
    server: str, request: pytest.FixtureRequest
) -> None:
    """They share the run's row, and as long as one of many has it, the driver would wait."""
    for engine in ready(request.getfixturevalue(f"{server}_url")):
        jobs = Jobs(engine)
        run = jobs.begin(jobs.driver())

        def stage(runs: Runs, run: Run = run) -> None:
            with runs.writing(run):
                pass

        with ThreadPoolExecutor(2) as threads:
            with jobs.driver("early task").writing(run):
                driver = threads.submit(jobs.begin, jobs.driver("another"))
                await_waiting(engine, 1)
                late = threads.submit(stage, jobs.driver("late task"))
                await_waiting(engine, 2, unless=late)
                assert not late.done()
                assert not driver.done()
            assert driver.result(PATIENCE) != run
            with pytest.raises(FencedError, match="another run of the job has begun"):
                late.result(PATIENCE)


@pytest.mark.parametrize("server", SERVERS)
def test_tasks_of_a_run_write_at_the_same_time(server: str, request: pytest.FixtureRequest) -> None:
    for engine in ready(request.getfixturevalue(f"{server}_url")):
        jobs = Jobs(engine)
        run = jobs.begin(jobs.driver())
        with jobs.driver("one").writing(run), jobs.driver("two").writing(run):
            assert jobs.state() == "open"


@pytest.mark.slow_cases
@pytest.mark.parametrize("server", SERVERS)
def test_a_new_run_waits_for_a_transferring_task_and_takes_its_lease(
    server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in ready(request.getfixturevalue(f"{server}_url")):
        jobs = Jobs(engine)
        slow = Slow(engine)
        with monkeypatch.context() as patched:
            patched.setattr(runs, "TransferredLeases", lambda _, slow=slow: slow)
            task = jobs.driver("task")
        driver = jobs.driver()
        run, lease = jobs.begin(driver), jobs.lease(0)
        handing = threading.Thread(target=task.transfer_lease, args=(run, lease))
        handing.start()
        assert slow.has_signed.wait(PATIENCE)
        begun = threading.Event()

        def begin_another(driver: Runs = driver, jobs: Jobs = jobs, begun: threading.Event = begun) -> None:
            jobs.begin(driver)
            begun.set()

        others = threading.Thread(target=begin_another)
        others.start()
        begun.wait(AT_ONCE)
        slow.may_commit.set()
        for thread in (handing, others):
            thread.join(PATIENCE)
        assert begun.is_set()
        assert jobs.states() == {"a-0": ("", "driver")}
