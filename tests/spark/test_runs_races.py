"""Runs that end while a task hands over: nothing is signed by a run that is over."""

import threading

import pytest
from sqlalchemy import Connection, Engine

from dualwrite.coordinator.handing import HandedLeases
from dualwrite.coordinator.participants import Lease
from dualwrite.spark.runs import Runs
from tests.spark.conftest import ready
from tests.spark.test_runs import Jobs

PATIENCE = 60.0
"""Seconds that a test waits for what must come."""
AT_ONCE = 0.5
"""Seconds in which something happens that nothing keeps from it."""


class Slow(HandedLeases):
    """Stops between the signature and the COMMIT."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.has_signed = threading.Event()
        self.may_commit = threading.Event()

    def hand_over(self, connection: Connection, lease: Lease, owner: str, seconds: float) -> None:
        super().hand_over(connection, lease, owner, seconds)
        self.has_signed.set()
        assert self.may_commit.wait(PATIENCE)


@pytest.mark.parametrize("server", [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
])  # fmt: skip
def test_a_task_that_is_handing_over_is_waited_for_and_its_lease_taken(
    server: str, request: pytest.FixtureRequest
) -> None:
    for engine in ready(request.getfixturevalue(f"{server}_url")):
        jobs = Jobs(engine)
        driver, task = jobs.driver(), jobs.driver("task")
        run, lease = jobs.begin(driver), jobs.lease(0)
        task._handed = slow = Slow(engine)
        handing = threading.Thread(target=task.sign_over, args=(run, lease))
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
