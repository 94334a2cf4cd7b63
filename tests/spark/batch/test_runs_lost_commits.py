"""A COMMIT of a run whose answer was lost: its outcome is read, or the run is in doubt."""

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.errors import DatabaseBusyError, InDoubtError
from dualwrite.spark.batch.runs import Owner, Run, Runs, RunState
from tests.support.coordinator.silent_database import LIMIT, SilentDatabaseWorld, error_of, world
from tests.support.servers.silent_proxy import COMMIT
from tests.support.spark.jobs import LONG, Jobs, things

__all__ = ["world"]

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


@pytest.fixture
def jobs(engine: Engine) -> Jobs:
    return Jobs(engine)


class CutConnection:
    """The connection is lost in the COMMIT of the first transaction that has changed things.

    :param effect: whether the server has got it before that.
    """

    def __init__(self, engine: Engine, *, effect: bool) -> None:
        self.engine = engine
        self.effect = effect
        self.number = 0
        self.is_armed = False
        event.listen(engine, "commit", self.commit)

    def commit(self, connection: Connection) -> None:
        if not self.is_armed:
            return
        self.is_armed = False
        self.number += 1
        driver: Any = connection.connection.dbapi_connection
        if self.effect:
            driver.commit()
        else:
            driver.rollback()
        raise OperationalError("COMMIT", None, ConnectionError("cut"), connection_invalidated=True)

    def arm(self, step: str) -> None:
        self.is_armed = self.is_armed or step == "COMMIT_DATABASE"


@pytest.mark.parametrize("effect", [True, False])
def test_the_outcome_of_a_commit_whose_answer_was_lost_is_read(jobs: Jobs, effect: bool) -> None:
    driver, cut = jobs.driver(), CutConnection(jobs.engine, effect=effect)
    run = jobs.begin(driver, 5)
    leases = [jobs.task(run, 0)]
    if effect:
        assert jobs.commit(driver, run, leases, 5, observe=cut.arm) is RunState.COMMITTED
        assert jobs.states() == {"a-0": ("7:3", "driver")}
    else:
        with pytest.raises(OperationalError, match="cut"):
            jobs.commit(driver, run, leases, 5, observe=cut.arm)
        assert jobs.state() == "aborted", "so that it cannot be committed later"
        assert jobs.states() == {"a-0": ("", "driver")}
    assert cut.number == 1
    assert jobs.values(things) == ([0] if effect else [])


@pytest.mark.parametrize(
    "error",
    [
        OSError("no route to host"),
        OperationalError("SELECT", None, ConnectionError("no route to host")),
        DatabaseBusyError("the row is locked: no route to host"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_commit_whose_outcome_cannot_be_read_is_in_doubt(jobs: Jobs, error: Exception) -> None:
    """Whatever kept it from being read: an error that says that the batch may be run again would have it written
    twice."""

    def lose(step: str) -> None:
        cut.arm(step)
        if step == "READ_DECISION":
            raise error

    driver, cut = jobs.driver(), CutConnection(jobs.engine, effect=True)
    run = jobs.begin(driver, 5)
    with pytest.raises(InDoubtError, match="no route to host"):
        jobs.commit(driver, run, [jobs.task(run, 0)], 5, observe=lose)
    assert driver.end(run, 5) is RunState.COMMITTED


@pytest.mark.parametrize("effect", [True, False])
def test_the_batch_shows_a_commits_outcome_after_another_run_has_begun(jobs: Jobs, effect: bool) -> None:
    def overtake(step: str) -> None:
        cut.arm(step)
        if step == "READ_DECISION":
            jobs.begin(jobs.driver("next"), 6)

    driver, cut = jobs.driver(), CutConnection(jobs.engine, effect=effect)
    run = jobs.begin(driver, 5)
    leases = [jobs.task(run, 0)]
    if effect:
        assert jobs.commit(driver, run, leases, 5, observe=overtake) is RunState.COMMITTED
    else:
        with pytest.raises(OperationalError):
            jobs.commit(driver, run, leases, 5, observe=overtake)


def test_a_batch_that_the_next_run_has_committed_is_not_taken_for_the_work_of_the_run_before(jobs: Jobs) -> None:
    def overtake(step: str) -> None:
        cut.arm(step)
        if step == "READ_DECISION":
            heir = jobs.driver("next")
            jobs.commit(heir, jobs.begin(heir, 5), [], 5)

    driver, cut = jobs.driver(), CutConnection(jobs.engine, effect=False)
    run = jobs.begin(driver, 5)
    with pytest.raises(OperationalError, match="cut"):
        jobs.commit(driver, run, [jobs.task(run, 0)], 5, observe=overtake)
    assert (jobs.batches(), jobs.values(things)) == ([5], [])


def test_without_a_batch_id_a_commit_is_in_doubt_after_another_run(jobs: Jobs) -> None:
    def overtake(step: str) -> None:
        cut.arm(step)
        if step == "READ_DECISION":
            jobs.begin(jobs.driver("next"))

    driver, cut = jobs.driver(), CutConnection(jobs.engine, effect=True)
    run = jobs.begin(driver)
    with pytest.raises(InDoubtError, match="was followed by another"):
        jobs.commit(driver, run, [jobs.task(run, 0)], observe=overtake)


class SilentRun:
    """A run whose driver has its database behind a proxy that goes silent at the COMMIT.

    :param delivers: whether the server gets the COMMIT.
    """

    def __init__(self, world: SilentDatabaseWorld, *, delivers: bool) -> None:
        self._proxy, self._delivers = world.proxy, delivers
        self.jobs = Jobs(world.seen)
        engine = create_engine(world.proxy.plain_url)
        world.engines.append(engine)
        self.driver = Runs(engine, Owner("driver", LONG), SqlDecisionStore(engine, database_timeout=LIMIT))
        self.run: Run = self.jobs.begin(self.driver, 5)
        self.leases = [self.jobs.task(self.run, 0)]
        self.state: RunState | None = None

    def commit(self) -> None:
        self.state = self.jobs.commit(self.driver, self.run, self.leases, 5, observe=self._observe)

    def _observe(self, step: str) -> None:
        if step == "COMMIT_DATABASE":
            self._proxy.silence_at(COMMIT, delivers=self._delivers)


@pytest.mark.slow
def test_a_commit_that_a_silent_database_has_got_is_found(world: SilentDatabaseWorld) -> None:
    silent = SilentRun(world, delivers=True)
    assert error_of(silent.commit, 2 * LIMIT) is None
    assert world.proxy.silenced.is_set()
    assert silent.state is RunState.COMMITTED
    assert silent.jobs.values(things) == [0]


@pytest.mark.slow
def test_a_commit_that_has_not_reached_a_silent_database_is_in_doubt_until_it_answers(
    world: SilentDatabaseWorld,
) -> None:
    """Its transaction holds the row of the job."""
    silent = SilentRun(world, delivers=False)
    error = error_of(silent.commit, 2 * LIMIT)
    assert isinstance(error, InDoubtError), error
    assert f"had not answered after {LIMIT:g} s (database_timeout)" in str(error)
    world.proxy.end_silent()
    assert silent.driver.end(silent.run, 5) is RunState.ABORTED
    assert silent.jobs.values(things) == []


@pytest.mark.slow
def test_a_lease_that_a_silent_database_does_not_transfer_is_given_up_within_the_limit(
    world: SilentDatabaseWorld,
) -> None:
    silent = SilentRun(world, delivers=False)
    lease = silent.jobs.lease(1)
    world.proxy.silence_all()
    assert isinstance(error_of(lambda: silent.driver.transfer_lease(silent.run, lease), LIMIT), OperationalError)
    assert silent.jobs.state() == "open"
