"""Whole batches: all of their rows and records, or none, over a real broker, with threads for executors."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, inspect, text, update

from dualwrite import EmbeddedBroker
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.coordinator.sql.tables import kafka_transaction_state, spark_run
from dualwrite.errors import (
    ConfigurationError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    DecisionLostError,
    FencedError,
    InputError,
    InvalidTransactionStateError,
)
from dualwrite.spark.batch import completing
from dualwrite.spark.batch.known_batches import BatchContent
from dualwrite.spark.batch.runs import Runs
from dualwrite.spark.batch.staging import staged_clause
from dualwrite.spark.workers import close_workers, worker_of
from tests.support.coordinator.event_table import await_sweeps, slot_rows
from tests.support.spark.batch_place import BatchPlace, batch_place_on, broker
from tests.support.spark.batches import (
    begun,
    failing_at,
    json_of,
    open_slots,
    rows,
    staged_rows,
    stored,
    write,
    written,
)

__all__ = ["broker"]

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


@pytest.fixture
def place(engine: Engine, broker: EmbeddedBroker) -> Iterator[BatchPlace]:
    yield from batch_place_on(engine, broker)


@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_all_partitions_commit_together(place: BatchPlace, producer: str) -> None:
    partitions = [rows(0, 20), rows(20, 21), [], rows(21, 40)]
    batch, work = begun(place.options(producer=producer), 1)
    sides = written(work, partitions)
    assert place.seen() == []
    assert stored(place.engine) == {}
    assert len(open_slots(place.engine)) == 3, "an empty partition has no transaction"
    batch.commit(work, sides, 1)
    place.judge(rows(0, 40))


def test_a_batch_that_was_committed_has_no_second_effect(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 5)], 1)
    batch, work = begun(place.options(), 1)
    assert work.run is None
    task = work.write(rows(0, 5), 0, 1)
    assert (task.lease, task.rows) == (None, ())
    batch.commit(work, [task], 1)
    batch.abort(work.run, 1)
    place.judge(rows(0, 5))


@pytest.mark.slow_cases
@pytest.mark.parametrize("step", ["DECIDE", "MOVE_ROWS", "STORE_STATES", "COMMIT_DATABASE"])
def test_an_interrupt_of_the_driver_leaves_nothing_open(place: BatchPlace, step: str) -> None:
    batch, work = begun(place.options(), 1, failing_at(step, KeyboardInterrupt))
    sides = written(work, [rows(0, 5)])
    with pytest.raises(KeyboardInterrupt):
        batch.commit(work, sides, 1)
    place.judge([])
    write(place.options(), [rows(0, 5)], 1)
    place.judge(rows(0, 5))


@pytest.mark.mariadb
@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_a_table_that_knows_no_transactions_is_refused(place: BatchPlace) -> None:
    with place.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE things ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match="'things' is kept by the engine MyISAM, which has no transactions"):
        begun(place.options(), 1)


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_run_works_with_a_german_datestyle_on_postgresql(postgresql: Engine, broker: EmbeddedBroker) -> None:
    with postgresql.begin() as connection:
        connection.exec_driver_sql(f'ALTER DATABASE "{postgresql.url.database}" SET DateStyle = German')
    place = BatchPlace(postgresql, broker)
    write(place.options(), [rows(0, 5)], 1)
    batch, work = begun(place.options(), 2)
    written(work, [rows(5, 9)])
    batch.abort(work.run, 2)
    close_workers()
    place.judge(rows(0, 5))


def test_a_stream_may_name_its_batch_at_the_commit(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 5)], 1)
    batch, work = begun(place.options(), None)
    batch.commit(work, written(work, [rows(0, 5)]), 1)
    place.judge(rows(0, 5))


def test_an_empty_batch_is_remembered(place: BatchPlace) -> None:
    for partitions in ([], [[], []]):
        write(place.options(), partitions, len(partitions))
        assert begun(place.options(), len(partitions))[1].run is None
    place.judge([])


def test_rows_are_added_or_replace_each_other_with_later_ones_winning(place: BatchPlace) -> None:
    upsert = place.options(upsertKeys="id")
    write(upsert, [rows(0, 3, "old")], 1)
    write(upsert, [rows(2, 5, "first"), rows(4, 6, "second")], 2)
    notes = {0: "old", 1: "old", 2: "first", 3: "first", 4: "second", 5: "second"}
    assert stored(place.engine) == notes
    expected = json_of([*rows(0, 3, "old"), *rows(2, 5, "first"), *rows(4, 6, "second")])
    assert place.seen() == sorted(expected.elements()), "each row is a record, replaced or not"


def test_losing_attempts_are_aborted_and_their_rows_removed(place: BatchPlace) -> None:
    batch, work = begun(place.options(), 1)
    winners = written(work, [rows(0, 10), rows(10, 20)])
    written(work, [rows(0, 10)])
    batch.commit(work, winners, 1)
    place.judge(rows(0, 20))


def test_a_row_that_the_database_refuses_rolls_the_batch_back(place: BatchPlace) -> None:
    with pytest.raises(InputError, match="job 'job': the database refuses a row"):
        write(place.options(), [rows(0, 10), rows(9, 12)], 1)
    place.judge([])
    write(place.options(), [rows(0, 10)], 1)
    place.judge(rows(0, 10))


@pytest.mark.postgresql
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
class TestOnPostgresql:
    """What it says, in one line of this library's."""

    def test_the_error_for_a_refused_value_names_its_column(self, place: BatchPlace) -> None:
        _, work = begun(place.options(), 1)
        with pytest.raises(InputError) as raised:
            work.write(rows(0, 1, "x" * 51), 0, 1)
        assert str(raised.value) == (
            "partition 0 of job 'job': the database refuses a row: "
            "value too long for type character varying(50) (column 'note')"
        )

    @pytest.mark.parametrize(
        ("code", "kind", "said"),
        [
            ("P0001", InputError, "the database refuses a row: not today"),
            ("42501", InputError, "the database refuses a row: not today"),
            ("42P01", InputError, "the database refuses a row: not today"),
            ("55P03", DatabaseBusyError, "table things takes no rows now: not today; run the batch again"),
            ("40P01", DatabaseBusyError, "table things takes no rows now: not today; run the batch again"),
        ],
    )
    def test_an_error_while_rows_are_moved_is_about_the_target_table(
        self, place: BatchPlace, code: str, kind: type[Exception], said: str
    ) -> None:
        refuse = f"BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = '{code}'; END"
        with place.engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $${refuse}$$")
            connection.exec_driver_sql("CREATE TRIGGER no BEFORE INSERT ON things FOR EACH ROW EXECUTE FUNCTION no()")
        with pytest.raises(kind) as raised:
            write(place.options(), [rows(0, 5)], 1)
        assert str(raised.value) == f"job 'job': {said}"
        place.judge([])

    @pytest.mark.parametrize("step", ["MOVE_ROWS", "STORE_STATES"])
    def test_a_connection_lost_before_the_decision_rolls_both_sides_back(self, place: BatchPlace, step: str) -> None:
        def observe(name: str) -> None:
            if name == step:
                ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                with place.engine.connect() as connection:
                    connection.exec_driver_sql(f"{ended} AND state = 'idle in transaction'")

        with pytest.raises(DatabaseUnavailableError, match=r"^job 'job': the database was lost: .*; nothing of it"):
            write(place.options(), [rows(0, 5)], 1, observe)
        place.judge([])
        write(place.options(), [rows(0, 5)], 1)
        place.judge(rows(0, 5))


def test_a_task_that_fails_leaves_its_rows_to_the_end_of_the_run(place: BatchPlace) -> None:
    batch, work = begun(place.options(), 1)
    written(work, [rows(0, 10)])
    with pytest.raises(RuntimeError, match="PREPARE_KAFKA"):
        replace(work, on_step=failing_at("PREPARE_KAFKA")).write(rows(10, 20), 1, 1000)
    assert staged_rows(place.engine) == 20
    batch.abort(work.run, 1)
    close_workers()  # the slot of the task that failed is kept for the next one
    place.judge([])


@pytest.mark.slow_cases
@pytest.mark.parametrize("step", ["BEGIN_RUN", "MOVE_ROWS", "STORE_STATES", "COMMIT_DATABASE"])
def test_a_failure_before_the_decision_rolls_both_sides_back(place: BatchPlace, step: str) -> None:
    with pytest.raises(RuntimeError, match=step):
        write(place.options(), [rows(0, 10), rows(10, 20)], 1, failing_at(step))
    place.judge([])


def test_after_the_decision_no_failure_is_raised_and_the_next_run_completes_it(
    place: BatchPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(completing, "PATIENCE", 0.0)
    with caplog.at_level(logging.WARNING, "dualwrite"):
        write(place.options(), [rows(0, 10)], 1, failing_at("COMPLETE_KAFKA"))
    assert "recovery will end them later" in caplog.text
    assert sorted(stored(place.engine)) == list(range(10))
    assert begun(place.options(), 1)[1].run is None
    place.judge(rows(0, 10))


def test_a_completion_that_fails_once_is_tried_again_at_once(place: BatchPlace) -> None:
    failures = ["COMPLETE_KAFKA"]

    def observe(step: str) -> None:
        if step in failures:
            failures.remove(step)
            raise RuntimeError(step)

    write(place.options(), [rows(0, 10)], 1, observe)
    assert (failures, open_slots(place.engine)) == ([], [])
    place.judge(rows(0, 10))


def test_the_error_of_a_batch_is_raised_although_its_run_cannot_be_ended(
    place: BatchPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise DatabaseUnavailableError("no route to host")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "dualwrite"):
        patched.setattr(Runs, "end", fail)
        with pytest.raises(RuntimeError, match="MOVE_ROWS"):
            write(place.options(), [rows(0, 10)], 1, failing_at("MOVE_ROWS"))
    assert "its run was not ended, the next one does that: no route to host" in caplog.text
    write(place.options(), [rows(0, 10)], 1)
    place.judge(rows(0, 10))


def test_after_the_decision_the_heartbeat_completes_it_without_another_run(
    place: BatchPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "PATIENCE", 0.0)
    write(place.options(), [rows(0, 10)], 1, failing_at("COMPLETE_KAFKA"))
    manager_of(worker_of(place.options()).dual_write).process.pool.beat()
    await_sweeps()
    assert place.seen() == sorted(json_of(rows(0, 10)).elements())


def test_the_table_of_staged_rows_goes_when_its_target_has_other_columns(place: BatchPlace) -> None:
    def tables() -> list[str]:
        return [name for name in inspect(place.engine).get_table_names() if name.startswith("dualwrite_staged")]

    _, dead = begun(place.options(), 1)
    written(dead, [rows(0, 10)])
    (before,) = tables()
    with place.engine.begin() as connection:
        connection.execute(text("ALTER TABLE things DROP COLUMN note"))
        connection.execute(text("ALTER TABLE things ADD COLUMN note VARCHAR(60)"))
    batch, other = begun(place.options(job="another"), 1)
    assert before in tables(), "an open run has it, whoever's"
    batch.abort(other.run, 1)
    with place.engine.begin() as connection:
        connection.execute(text("ALTER TABLE things ADD COLUMN more INTEGER DEFAULT 7"))
        connection.execute(text("ALTER TABLE things DROP COLUMN note"))
        connection.execute(text("ALTER TABLE things ADD COLUMN note VARCHAR(70)"))
    write(place.options(), [rows(10, 20)], 1)
    assert len(tables()) == 1
    assert before not in tables()
    place.judge(rows(10, 20))


def test_a_later_run_ends_an_earlier_one_whose_driver_is_fenced(place: BatchPlace) -> None:
    zombie, old = begun(place.options(), 1)
    sides = written(old, [rows(0, 10)])
    write(place.options(), [rows(10, 20)], 2)
    with pytest.raises(FencedError, match="another run of the job has begun"):
        zombie.commit(old, sides, 1)
    with pytest.raises(FencedError, match="has ended"):
        old.write(rows(20, 30), 1, 1000)
    place.judge(rows(10, 20))


def test_a_database_that_goes_back_before_the_decision_is_noticed_and_on_record(place: BatchPlace) -> None:
    """The fencing token is the same; the state is one from before the task leased the slot."""
    write(place.options(), [rows(0, 10)], 1)
    ((name, before),) = slot_rows(place.engine).items()
    batch, work = begun(place.options(), 2)
    sides = written(work, [rows(10, 20)])
    with place.engine.begin() as connection:
        connection.execute(update(kafka_transaction_state).values(prepared_txn_state="", first_record=None))
    with pytest.raises(DecisionLostError, match="has lost what it had committed"):
        batch.commit(work, sides, 2)
    place.judge(rows(0, 10))
    (found,) = outcomes(place.engine)
    assert (found.transactional_id, found.outcome) == (name, Outcome.HEURISTIC_COMMIT)
    assert found.state.startswith(before.prepared_txn_state)
    write(place.options(), [rows(10, 20)], 2)
    place.judge(rows(0, 20))


def test_recover_job_ends_the_run_of_a_dead_driver_at_once(place: BatchPlace) -> None:
    _, work = begun(place.options(), 1)
    written(work, [rows(0, 10), rows(10, 20)])
    outcomes = place.recover()
    assert {outcome.value for outcome in outcomes.values()} == {"aborted"}
    assert len(outcomes) == 2
    place.judge([])
    assert place.recover() == {}


def test_any_process_aborts_a_dead_drivers_transactions_once_the_run_has_timed_out(place: BatchPlace) -> None:
    batch, work = begun(place.options(), 1)
    assert work.run is not None
    sides = written(work, [rows(0, 10)])
    with place.engine.begin() as connection:
        connection.execute(update(spark_run).values(expires_at=spark_run.c.updated_at))
        leased = kafka_transaction_state
        connection.execute(update(leased).where(leased.c.owner != "").values(lease_expires_at=leased.c.updated_at))
    while any(row.owner.endswith(f"run-{work.run.run_id}") for row in slot_rows(place.engine).values()):
        manager_of(batch.worker.dual_write).sweep()
    with pytest.raises(FencedError):
        batch.commit(work, sides, 1)
    place.judge([])


def test_a_driver_that_takes_too_long_decides_nothing(place: BatchPlace) -> None:
    batch, work = begun(place.options(), 1)
    sides = written(work, [rows(0, 10)])
    with place.engine.begin() as connection:
        connection.execute(update(spark_run).values(expires_at=spark_run.c.updated_at))
    with pytest.raises(FencedError, match="longer than its runTimeout"):
        batch.commit(work, sides, 1)
    place.judge([])


def test_a_task_of_another_run_is_refused(place: BatchPlace) -> None:
    _, old = begun(place.options(), 1)
    sides = written(old, [rows(0, 10)])
    batch, work = begun(place.options(), 2)
    with pytest.raises(InvalidTransactionStateError, match="has written for"):
        batch.commit(work, sides, 2)
    place.judge([])


@pytest.mark.parametrize("is_same", [True, False])
def test_a_partition_committed_twice_is_refused_and_rolls_the_run_back(place: BatchPlace, is_same: bool) -> None:
    batch, work = begun(place.options(), 1)
    first = written(work, [rows(0, 10)])
    second = first if is_same else written(work, [rows(10, 20)])
    with pytest.raises(InvalidTransactionStateError, match="partition 0 of job 'job' is committed twice"):
        batch.commit(work, [*first, *second], 1)
    place.judge([])


def test_rows_that_a_database_crash_has_lost_roll_the_run_back(place: BatchPlace) -> None:
    batch, work = begun(place.options(), 1)
    sides = written(work, [rows(0, 10)])
    assert work.run is not None
    with place.engine.begin() as connection:
        connection.execute(delete(staged_clause(work.run.staging, "things", work.columns)))
    with pytest.raises(DatabaseBusyError, match="10 rows of job 'job' were staged, and 0 are left"):
        batch.commit(work, sides, 1)
    place.judge([])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dbtable": "thing"}, "the database has no table 'thing'; did you mean 'things'"),
        ({"upsertKeys": "note"}, "is not a primary or unique key"),
        ({"columns.table": "id,nothing"}, "the DataFrame has no column 'nothing'"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_before_a_run_begins(
    place: BatchPlace, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        begun(place.options(**changed), 1)
    with place.engine.connect() as connection:
        assert connection.execute(spark_run.select()).all() == []


@pytest.mark.slow
def test_a_decision_for_many_partitions_takes_few_statements(place: BatchPlace) -> None:
    batch, work = begun(place.options(), 1)
    sides = written(work, [rows(number, number + 1) for number in range(20)])
    said: list[str] = []
    event.listen(batch.worker.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    batch.runs.commit(
        work.run,  # type: ignore[arg-type]
        1,
        [(side.lease, side.state) for side in sides],  # type: ignore[union-attr, misc]
        lambda _: BatchContent(20),
        lambda _: None,
        100,
    )
    assert len(said) < 20


@pytest.mark.slow_cases
def test_a_run_with_resume_ends_before_kafkas_transaction_timeout(place: BatchPlace) -> None:
    kept = {"twoPhase": "resume", "kafka.transaction.timeout.ms": "60000"}
    batch, _ = begun(place.options(**kept), 1)
    assert batch.run_seconds == pytest.approx(54.0)
    with place.engine.connect() as connection:
        remaining = database_of(place.engine.dialect).seconds_until(spark_run.c.expires_at)
        assert 0 < float(connection.execute(spark_run.select().with_only_columns(remaining)).scalar_one()) <= 54
