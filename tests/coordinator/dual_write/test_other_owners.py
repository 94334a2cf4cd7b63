"""Threads take turns, and another process takes over: a killed one, one whose lease ran out, a forked child."""

import gc
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.process import ProcessObjects
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.process.after_fork import after_fork
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import DatabaseBusyError, FencedError, InvalidTransactionStateError, NoFreeSlotError
from tests.support.child import in_child
from tests.support.coordinator.event_table import expire_leases, is_closed, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, raising, recovered, run_unit, write, write_unit, writing

Make = Callable[..., DualWrite]

# One at a time.


def test_close_and_recover_are_refused_inside_a_unit_and_it_goes_on(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with dual_write.transaction() as tx:
        write(tx, "one")
        for inside in (dual_write.close, dual_write.recover):
            with pytest.raises(InvalidTransactionStateError, match="open in this thread"):
                inside()
    assert in_both(sqlite_engine, kafka, "one")


def test_after_a_close_nothing_of_the_library_leaves_a_connection_in_the_pool(
    dual_write: DualWrite, sqlite_engine: Engine
) -> None:
    """A thread that a close() did not wait for, say: the engine may have been disposed of."""
    dual_write.close()
    with manager_of(dual_write).store.connection() as connection:
        driver = connection.connection.driver_connection
    assert is_closed(driver, sqlite_engine)


def test_threads_take_turns(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: write_unit(dual_write, str(number)), range(40)))
    assert sorted(kafka.committed) == sorted(map(str, range(40)))
    assert stored_values(sqlite_engine) == kafka.committed
    assert kafka.requests.count("init") == 1


# Another process.


def test_the_next_process_finishes_what_a_killed_one_left(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    dead: list[str] = []

    def killed(step: str) -> None:
        if dead or step == "COMMIT_KAFKA":
            dead.append(step)
            raise SystemExit

    with pytest.raises(SystemExit):
        write_unit(make_dual_write(on_step=killed), "one")
    assert kafka.committed == []
    expire_leases(sqlite_engine)
    successor = make_dual_write()
    assert successor.recover() == {"orders-0": Outcome.COMMITTED}
    assert in_both(sqlite_engine, kafka, "one")
    assert successor.recover() == {}


def test_a_process_whose_lease_ran_out_is_fenced_and_takes_nothing_back(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    earlier, successor = make_dual_write(acquire_timeout=0), make_dual_write()
    write_unit(earlier, "one")
    expire_leases(sqlite_engine)
    write_unit(successor, "two")
    with pytest.raises(FencedError) as raised:
        write_unit(earlier, "zombie")
    assert raised.value.retriable
    assert recovered(earlier)
    for _ in range(3):
        with pytest.raises(NoFreeSlotError, match=r"orders-0 by .*, whose lease has"):
            write_unit(earlier, "zombie")
    with pytest.raises(NoFreeSlotError):
        earlier.recover()
    assert not earlier.pending()
    write_unit(successor, "three")
    assert in_both(sqlite_engine, kafka, "one", "two", "three")
    assert kafka.requests.count("init") == 2, "the fenced one took the id back"


@pytest.mark.parametrize("step", ["PREPARE_KAFKA", "STORE_STATE", "COMMIT_KAFKA"])
def test_a_take_over_in_the_middle_of_a_unit_leaves_both_sides_equal(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, step: str
) -> None:
    """On SQLite a unit holds the write lock until its COMMIT; so before that the successor gets DatabaseBusyError."""
    impatient = create_engine(sqlite_engine.url, connect_args={"timeout": 0})
    successor = make_dual_write(impatient)
    outcomes: list[object] = []

    def observe(name: str) -> None:
        if name == "BEGIN_DATABASE":
            expire_leases(sqlite_engine)
        if name == step:
            try:
                outcomes.append(successor.recover())
            except DatabaseBusyError as error:
                outcomes.append(error)

    earlier = make_dual_write(on_step=observe, acquire_timeout=0)
    write_unit(earlier, "one")
    assert in_both(sqlite_engine, kafka, "one")
    assert (outcomes == [{"orders-0": Outcome.COMMITTED}]) is (step == "COMMIT_KAFKA")
    assert recovered(earlier)  # which asks for the lock that the impatient one does not wait for
    write_unit(successor, "two")
    with pytest.raises((FencedError, NoFreeSlotError)):
        write_unit(earlier, "zombie")
    assert in_both(sqlite_engine, kafka, "one", "two")
    impatient.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize("step", ["BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE"])
def test_a_take_over_before_the_state_is_stored_rolls_the_unit_back(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, step: str
) -> None:
    engine = ready_engine(postgresql_url)
    successor = make_dual_write(engine)

    def observe(name: str) -> None:
        if name == step:
            expire_leases(engine)
            write_unit(successor, "successor's")

    earlier = make_dual_write(engine, on_step=observe, acquire_timeout=0)
    with pytest.raises(FencedError):
        write_unit(earlier, "zombie's")
    with pytest.raises(NoFreeSlotError):
        write_unit(earlier, "zombie's")
    write_unit(successor, "two")
    assert in_both(engine, kafka, "successor's", "two")
    earlier.close()
    successor.close()
    engine.dispose()


@pytest.mark.postgresql
def test_a_take_over_waits_for_the_commit_of_the_unit_that_has_stored_its_state(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka
) -> None:
    engine = ready_engine(postgresql_url)
    successor = make_dual_write(engine)
    with ThreadPoolExecutor(1) as thread:
        waiting: list[Any] = []

        def observe(name: str) -> None:
            if name == "BEGIN_DATABASE":
                expire_leases(engine)
            if name == "COMMIT_DATABASE":
                waiting.append(thread.submit(successor.recover))

        write_unit(make_dual_write(engine, on_step=observe), "one")
        waiting[0].result(timeout=30)
    assert in_both(engine, kafka, "one")
    successor.close()
    engine.dispose()


def test_an_operators_fencing_in_kafka_fails_the_current_unit_only(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")
    with pytest.raises(FencedError):
        # As kafka-transactions --forceTerminateTransaction does.
        run_unit(dual_write, writing("two"), lambda tx: kafka.init_producer_id(keep_prepared_txn=False))
    write_unit(dual_write, "three")
    assert in_both(sqlite_engine, kafka, "one", "three")


def test_the_fencing_of_another_application_inside_a_unit_does_not_close_this_one(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    this = make_dual_write()
    with pytest.raises(FencedError):
        run_unit(this, writing("one"), raising(FencedError("of another DualWrite")))
    write_unit(this, "two")
    assert in_both(sqlite_engine, kafka, "two")


@pytest.mark.postgresql
def test_a_child_that_is_forked_inside_a_unit_leaves_its_parents_transaction_alone(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ready_engine(postgresql_url)
    dual_write = make_dual_write(engine)
    block = dual_write.transaction()
    with block as tx:
        write(tx, "before")
        with monkeypatch.context() as child:  # a real one would share the connection just so
            child.setattr(os, "getpid", lambda: manager_of(dual_write).process.pid + 1)
            block.__exit__(None, RuntimeError("the child's"), None)
            for use in (
                lambda: block.__exit__(None, None, None),
                lambda: write(tx, "the child's"),
                lambda: tx.connection,
                lambda: tx.session,
                lambda: tx.scalar(select(1)),
                lambda: tx.produce("events", "the child's"),
            ):
                with pytest.raises(InvalidTransactionStateError, match="which alone can use and end it"):
                    use()
        write(tx, "after")
    assert in_both(engine, kafka, "before", "after")
    engine.dispose()


forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@forks
def test_a_child_keeps_its_parents_connections_as_they_are(dual_write: DualWrite, sqlite_engine: Engine) -> None:
    """Some drivers end the parent's session if a connection is closed or collected here."""
    write_unit(dual_write, "one")
    pool: Callable[[], Any] = weakref.ref(sqlite_engine.pool)
    assert pool().checkedin() == 1

    def use() -> bool:
        dual_write.wait_idle(0)
        gc.collect()
        kept = pool()
        return kept is not None and kept is not sqlite_engine.pool and kept.checkedin() == 1

    assert in_child(use)


@forks
def test_a_child_with_two_dual_writes_on_one_engine_keeps_the_connections_that_it_has_made(
    dual_write: DualWrite, make_dual_write: Make, sqlite_engine: Engine
) -> None:
    other = make_dual_write(application="other")

    def use() -> bool:
        dual_write.wait_idle(0)
        own = sqlite_engine.pool
        other.wait_idle(0)
        return sqlite_engine.pool is own

    assert in_child(use)


@forks
def test_a_child_makes_its_own_objects_although_a_thread_of_its_parent_does_the_same_now(dual_write: DualWrite) -> None:
    with after_fork.lock:
        assert in_child(lambda: dual_write.wait_idle(0) and manager_of(dual_write).process.pid == os.getpid())


@forks
def test_threads_of_a_child_share_its_own_objects(dual_write: DualWrite) -> None:
    """Two sets would lease slots for each, and only one of them would be closed."""
    manager, lock = manager_of(dual_write), after_fork.lock
    made: list[ProcessObjects] = []

    class Overtaken:
        """As if another thread had got the lock before."""

        def __enter__(self) -> None:
            after_fork.lock = lock
            manager.check_process()
            made.append(manager.process)

        def __exit__(self, *_: object) -> None:
            """The other thread has let go of it, too."""

    def use() -> bool:
        after_fork.lock = lock_of_another
        inherited = manager.process
        manager.check_process()
        return made == [manager.process] and manager.process is not inherited

    lock_of_another: Any = Overtaken()
    assert in_child(use)
