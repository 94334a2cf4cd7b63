"""Runs: one at a time is open in each job, and a decision is one transaction."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, event, insert, text, update

from dualwrite.coordinator.process.watchdog import Limit
from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotStatus
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.tables import spark_batch, spark_run
from dualwrite.errors import ConfigurationError, DatabaseNotReadyError, FencedError
from dualwrite.spark.batch.known_batches import BatchContent
from dualwrite.spark.batch.runs import RUN_COLUMN, Owner, Run, Runs, RunState
from tests.support.coordinator.event_table import expire_leases
from tests.support.servers.databases import SERVERS
from tests.support.spark.jobs import LONG, STAGED, Jobs, ignore, staged, things

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


@pytest.fixture
def jobs(engine: Engine) -> Jobs:
    return Jobs(engine)


def test_a_decision_moves_rows_stores_states_and_remembers_the_batch(jobs: Jobs) -> None:
    driver = jobs.driver()
    run = jobs.begin(driver, 5)
    leases = [jobs.task(run, number) for number in range(3)]
    assert {owner for _, owner in jobs.states().values()} == {run.signature}
    assert jobs.commit(driver, run, leases[:2], 5) is RunState.COMMITTED
    assert jobs.states() == {"a-0": ("7:3", "driver"), "a-1": ("7:3", "driver"), "a-2": ("", "driver")}
    assert driver.completable() == ["a-0", "a-1", "a-2"]
    assert (jobs.values(things), jobs.values(staged)) == ([0, 1, 2], [])
    assert (jobs.batches(), jobs.state()) == ([5], "committed")


def test_a_task_checks_whether_its_run_is_open_without_waiting_for_the_decision(jobs: Jobs) -> None:
    driver, task, seen = jobs.driver(), jobs.driver("task"), []
    run = jobs.begin(driver)

    def observe(step: str) -> None:
        task.require_still_open(run)
        seen.append(step)

    jobs.commit(driver, run, [], observe=observe)
    assert seen == ["DECIDE", "MOVE_ROWS", "STORE_STATES", "COMMIT_DATABASE"]
    with pytest.raises(FencedError, match="has ended"):
        task.require_still_open(run)


def test_a_batch_that_was_committed_is_not_begun_again(jobs: Jobs) -> None:
    driver = jobs.driver()
    run = jobs.begin(driver, 5)
    jobs.commit(driver, run, [jobs.task(run, 0)], 5)
    assert driver.begin("job", 5, STAGED, LONG) is None
    assert driver.begin("other job", 5, STAGED, LONG) is not None
    assert driver.begin("job", None, STAGED, LONG) is not None


def test_a_batch_that_was_committed_meanwhile_is_not_committed_again(jobs: Jobs) -> None:
    """A stream says which batch it is only in the end."""
    driver = jobs.driver()
    first = jobs.begin(driver)
    jobs.commit(driver, first, [jobs.task(first, 0)], 5)
    second = jobs.begin(driver)
    assert jobs.commit(driver, second, [jobs.task(second, 1)], 5) is RunState.ABORTED
    assert (jobs.values(things), jobs.values(staged)) == ([0], [])
    assert jobs.states()["a-1"] == ("", "driver")
    assert jobs.state() == "aborted"


def test_a_fenced_driver_whose_batch_is_committed_by_now_does_not_end_the_run_that_is_open(jobs: Jobs) -> None:
    zombie, driver = jobs.driver("zombie"), jobs.driver()
    old = jobs.begin(zombie)
    jobs.commit(driver, jobs.begin(driver), [], 5)
    new = jobs.begin(driver, 6)
    lease = jobs.task(new, 0)
    with pytest.raises(FencedError, match="another run of the job has begun"):
        jobs.commit(zombie, old, [], 5)
    assert (jobs.state(), jobs.values(staged)) == ("open", [0])
    assert jobs.commit(driver, new, [lease], 6) is RunState.COMMITTED
    assert jobs.values(things) == [0]


def test_a_second_commit_of_a_run_changes_nothing(jobs: Jobs) -> None:
    driver = jobs.driver()
    run = jobs.begin(driver)
    leases = [jobs.task(run, 0)]
    assert jobs.commit(driver, run, leases) is jobs.commit(driver, run, leases) is RunState.COMMITTED
    assert jobs.values(things) == [0]


def test_the_end_of_a_run_that_was_committed_writes_that_again(jobs: Jobs) -> None:
    """A commit can be read before it is on disk. After a later commit it is there too."""
    driver, written = jobs.driver(), []
    run = jobs.begin(driver)
    jobs.commit(driver, run, [jobs.task(run, 0)])

    @event.listens_for(jobs.engine, "before_execute")
    def note(connection: Connection, statement: Any, *_: object) -> None:
        written.extend([statement.table.name] if statement.is_dml else [])

    assert driver.end(run) is RunState.COMMITTED
    assert written == [spark_run.name]
    assert (jobs.state(), jobs.values(things)) == ("committed", [0])


def test_a_new_run_ends_the_previous_one_and_takes_its_leases(jobs: Jobs) -> None:
    dead, driver = jobs.driver("dead driver"), jobs.driver()
    old = jobs.begin(dead)
    lease = jobs.task(old, 0)
    new = jobs.begin(driver)
    assert jobs.states() == {"a-0": ("", "driver")}
    assert jobs.values(staged) == []
    assert driver.completable() == ["a-0"]
    with pytest.raises(FencedError, match="another run of the job has begun"):
        jobs.commit(dead, old, [lease])
    assert dead.end(old, 1) is RunState.ABORTED
    assert jobs.commit(driver, new, [jobs.task(new, 1)]) is RunState.COMMITTED
    assert jobs.values(things) == [1]


def test_a_task_of_an_ended_run_stages_and_transfers_nothing(jobs: Jobs) -> None:
    driver = jobs.driver()
    run = jobs.begin(driver)
    lease = jobs.lease(0)
    assert driver.end(run) is RunState.ABORTED
    task = jobs.driver("task")
    with pytest.raises(FencedError, match="has ended"), task.writing(run):
        pass
    with pytest.raises(FencedError, match="has ended"):
        task.transfer_lease(run, lease)
    assert jobs.states() == {"a-0": ("", "task")}


def test_a_run_does_not_outlast_its_timeout(jobs: Jobs) -> None:
    driver = jobs.driver()
    run = jobs.begin(driver)
    leases = [jobs.task(run, 0), jobs.lease(1)]
    with jobs.engine.begin() as connection:
        connection.execute(update(spark_run).values(expires_at=spark_run.c.updated_at))
    with pytest.raises(FencedError, match="raise that"):
        jobs.driver("task").transfer_lease(run, leases[1])
    with pytest.raises(FencedError, match="raise that"):
        jobs.commit(driver, run, leases[:1])
    assert jobs.values(things) == []


def test_a_run_whose_row_the_database_has_lost_is_fenced(jobs: Jobs) -> None:
    driver = jobs.driver()
    run, lease = jobs.begin(driver, 5), jobs.lease(0)
    with jobs.engine.begin() as connection:
        connection.execute(delete(spark_run))
    with pytest.raises(FencedError, match="has ended"), jobs.driver("task").writing(run):
        pytest.fail("a task writes")
    with pytest.raises(FencedError, match="has ended"):
        jobs.driver("task").transfer_lease(run, lease)
    with pytest.raises(FencedError, match="has ended"):
        jobs.commit(driver, run, [], 5)
    assert driver.end(run, 5) is RunState.ABORTED


class NotingStore(SqlDecisionStore):
    """A store with a time limit for each of its transactions."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._limit = Limit(LONG, "before the first")

    def limit(self, name: str) -> Limit:
        """Also for a file."""
        self._limit = Limit(LONG, name)
        return self._limit

    def is_resting(self) -> bool:
        """True if the transaction that has begun last has no limit now."""
        return self._limit.remaining() == math.inf


def test_rows_in_bulk_have_no_time_limit_and_all_other_steps_of_a_run_have_one(jobs: Jobs) -> None:
    """A run moves all rows of a batch in one transaction, however many they are."""
    store, rested, limited = NotingStore(jobs.engine), set[str](), set[str]()
    driver = Runs(jobs.engine, Owner("driver", LONG), store)

    def note(step: str) -> None:
        (rested if store.is_resting() else limited).add(step)

    @event.listens_for(jobs.engine, "before_cursor_execute")
    def note_statement(_: Connection, __: object, statement: str, *___: object) -> None:
        note(" ".join(statement.split()[:3]))

    run = jobs.begin(driver, 5)
    with driver.writing(run) as connection:
        connection.execute(text("SELECT 7"))
    assert jobs.commit(driver, run, [], 5, observe=note) is RunState.COMMITTED
    assert rested - {"DECIDE"} == {"SELECT 7", "INSERT INTO things", "DELETE FROM staged"}
    assert "COMMIT_DATABASE" in limited
    for own in ("UPDATE", "INSERT"):
        assert any(step.startswith(own) and "dualwrite_spark_" in step for step in limited), limited


def test_a_run_that_lacks_a_table_says_what_makes_it(jobs: Jobs) -> None:
    driver = jobs.driver()
    run = jobs.begin(driver, 5)
    spark_batch.drop(jobs.engine)
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        jobs.commit(driver, run, [], 5)


def test_a_transferred_lease_expires_with_the_run(jobs: Jobs) -> None:
    run = jobs.begin(jobs.driver(), seconds=20)
    jobs.task(run, 0)
    (row,) = jobs.leases.rows("a")
    assert 0 < (row.remaining or 0) <= 20


def test_a_lease_that_was_recovered_meanwhile_fences_the_run(jobs: Jobs) -> None:
    driver = jobs.driver()
    run = jobs.begin(driver)
    leases = [jobs.task(run, 0), jobs.task(run, 1)]
    expire_leases(jobs.engine)
    (row,) = [row for row in jobs.leases.rows("a") if row.number == 1]
    assert jobs.leases.take([Candidate(row, SlotStatus.EXPIRED)], "heir", LONG, 1)
    with pytest.raises(LeaseLostError):
        jobs.commit(driver, run, leases)
    assert (jobs.values(things), jobs.state()) == ([], "open")
    assert driver.end(run) is RunState.ABORTED
    assert jobs.states() == {"a-0": ("", "driver"), "a-1": ("", "heir")}


def test_a_look_for_completable_leases_does_not_renew_them(jobs: Jobs) -> None:
    """A job that has another application now never recovers what it left under the name before."""
    driver = jobs.driver()
    run = jobs.begin(driver)
    jobs.commit(driver, run, [jobs.task(run, 0)])
    expire_leases(jobs.engine)
    assert driver.completable() == ["a-0"]
    (row,) = jobs.leases.rows("a")
    assert row.remaining is not None
    assert row.remaining <= 0


def test_jobs_do_not_affect_each_other(jobs: Jobs) -> None:
    one, two = jobs.driver("one"), jobs.driver("two")
    first, second = jobs.begin(one, job="a b"), jobs.begin(two, job="a")
    leases = [jobs.task(first, 0), jobs.task(second, 1)]
    assert jobs.commit(two, second, leases[1:]) is RunState.COMMITTED
    assert jobs.commit(one, first, leases[:1]) is RunState.COMMITTED
    assert jobs.states() == {"a-0": ("7:3", "one"), "a-1": ("7:3", "two")}
    assert jobs.values(things) == [0, 1], "the end of a run deletes no staged row of another job"


def test_of_two_first_runs_of_a_job_the_later_one_finds_the_row_of_the_other(jobs: Jobs) -> None:
    """The other run inserts the job's row after this one has looked for it."""
    rivals = iter([jobs.driver("rival")])

    @event.listens_for(jobs.engine, "checkin")
    def overtake(*_: object) -> None:
        for rival in rivals:
            jobs.begin(rival)

    run = jobs.begin(jobs.driver())
    assert next(rivals, None) is None
    jobs.driver().require_still_open(run)


def test_a_run_whose_row_the_database_refuses_says_so(sqlite: Engine) -> None:
    jobs = Jobs(sqlite)
    with sqlite.begin() as connection:
        refuses = "BEFORE INSERT ON dualwrite_spark_run BEGIN SELECT RAISE(ABORT, 'refused'); END"
        connection.execute(text(f"CREATE TRIGGER refuses {refuses}"))
    with pytest.raises(ConfigurationError, match="the database refuses a row of dualwrite_spark_run: refused: look"):
        jobs.begin(jobs.driver())


def test_a_run_whose_staging_table_was_dropped_can_be_ended(jobs: Jobs) -> None:
    driver = jobs.driver()
    run = jobs.begin(driver)
    jobs.task(run, 0)
    staged.drop(jobs.engine)
    assert driver.end(run) is RunState.ABORTED
    assert jobs.states() == {"a-0": ("", "driver")}


def test_only_the_open_one_of_many_concurrent_runs_commits(jobs: Jobs) -> None:
    drivers = [jobs.driver(str(number)) for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        runs = list(threads.map(lambda driver: jobs.begin(driver), drivers))
    outcomes = []
    for driver, run in zip(drivers, runs, strict=True):
        try:
            outcomes.append(driver.commit(run, None, [], lambda _: BatchContent(0), ignore, 100))
        except FencedError:
            outcomes.append(RunState.ABORTED)
    assert sorted(outcome.value for outcome in outcomes) == ["aborted"] * 5 + ["committed"]


def test_old_batches_are_forgotten(jobs: Jobs) -> None:
    driver = jobs.driver()
    for batch_id in range(6):
        run = jobs.begin(driver, batch_id)
        jobs.commit(driver, run, [], batch_id, keep=3)
    assert jobs.batches() == [3, 4, 5]


def test_a_job_that_forgets_batches_changes_nothing_for_another_job(jobs: Jobs) -> None:
    driver = jobs.driver()
    jobs.commit(driver, jobs.begin(driver, 0, job="other"), [], 0, keep=1)
    for batch_id in (5, 6):
        jobs.commit(driver, jobs.begin(driver, batch_id), [], batch_id, keep=1)
    assert jobs.batches() == [0, 6]
    assert driver.begin("other", 0, STAGED, LONG) is None, "a forgotten batch would be written again"
    assert jobs.commit(driver, jobs.begin(driver, 3, job="other"), [], 3, keep=1) is RunState.COMMITTED


def test_end_job_ends_an_open_run_only(jobs: Jobs) -> None:
    driver, operator = jobs.driver(), jobs.driver("operator")
    assert operator.end_job("job") is None
    run = jobs.begin(driver)
    jobs.task(run, 0)
    assert operator.end_job("job") == run
    assert operator.end_job("job") is None
    assert jobs.states() == {"a-0": ("", "operator")}


@pytest.mark.parametrize("step", ["MOVE_ROWS", "STORE_STATES", "COMMIT_DATABASE"])
def test_a_failure_before_the_commit_leaves_the_run_open_and_nothing_done(jobs: Jobs, step: str) -> None:
    def fail(name: str) -> None:
        if name == step:
            raise RuntimeError(step)

    driver = jobs.driver()
    run = jobs.begin(driver)
    leases = [jobs.task(run, 0)]
    with pytest.raises(RuntimeError, match=step):
        jobs.commit(driver, run, leases, observe=fail)
    assert (jobs.state(), jobs.values(things), jobs.values(staged)) == ("open", [], [0])
    assert jobs.commit(driver, run, leases) is RunState.COMMITTED


ENDS: dict[str, Callable[[Jobs, Run], object]] = {
    "end": lambda jobs, run: jobs.driver().end(run),
    "end of the job": lambda jobs, run: jobs.driver().end_job(run.job),
    "commit": lambda jobs, run: jobs.commit(jobs.driver(), run, []),
}


@pytest.mark.parametrize("act", list(ENDS))
@pytest.mark.parametrize("server", SERVERS)
def test_a_task_that_is_writing_is_waited_for_and_its_rows_are_deleted(
    server: str, act: str, request: pytest.FixtureRequest
) -> None:
    """Whoever ends a run sees all that its tasks have staged: none comes after it."""
    from tests.spark.conftest import ready
    from tests.support.spark.lock_waits import await_waiting

    for engine in ready(request.getfixturevalue(f"{server}_url")):
        jobs = Jobs(engine)
        run = jobs.begin(jobs.driver())
        ended = threading.Event()

        def end(jobs: Jobs = jobs, run: Run = run, ended: threading.Event = ended) -> None:
            ENDS[act](jobs, run)
            ended.set()

        with jobs.driver("task").writing(run) as connection:
            connection.execute(insert(staged).values({RUN_COLUMN: run.run_id, "n": 1}))
            ending = threading.Thread(target=end)
            ending.start()
            await_waiting(engine, 1)
            assert not ended.is_set()
        ending.join(30)
        assert ended.is_set()
        assert jobs.values(staged) == []


def test_a_signature_is_one_owner_whatever_the_job_is_called() -> None:
    run = Run("a job with words " * 20, 7, STAGED)
    assert len(run.signature) <= 255
    assert len(run.signature.split(" ")) == 2, "four words are a process's"
    assert replace(run, run_id=8).signature != run.signature
