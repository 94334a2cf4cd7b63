"""Failures of either side around an asynchronous unit of work: each leaves the two sides equal."""

from typing import Any

import pytest
from sqlalchemy import event, insert

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import DatabaseUnavailableError, FencedError, InDoubtError, KafkaUnavailableError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, raise_value_error, run, write_unit
from tests.support.coordinator.event_table import CONFIG, TakingStore, events, expire_leases
from tests.support.coordinator.fake_kafka import Fault
from tests.support.coordinator.usual_unit import fail_at
from tests.support.servers.sessions import kill_session, session_of

pytestmark = pytest.mark.slow_cases("psycopg")


async def background_is_done(dual_write: AsyncDualWrite) -> bool:
    return await dual_write.wait_idle(20)


def test_a_commit_that_kafka_does_not_answer_is_finished_in_the_background(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            fail_at(place.kafka, "commit", times=1)
            await write_unit(dual_write, "two")
            await write_unit(dual_write, "three")
            assert await background_is_done(dual_write)
            assert dual_write.counters.finished_later == 1

    run(main())
    assert place.in_both("one", "two", "three")


@pytest.mark.parametrize("request_", ["begin", "produce", "prepare", "abort"])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_unit_that_kafka_fails_is_in_neither(sqlite_place: AsyncPlace, request_: str, fault: Fault) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            fail_at(sqlite_place.kafka, request_, fault)
            with pytest.raises(ValueError if request_ == "abort" else KafkaUnavailableError):
                await write_unit(dual_write, "two", *([raise_value_error] if request_ == "abort" else []))
            await write_unit(dual_write, "three")
            assert await background_is_done(dual_write)

    run(main())
    assert sqlite_place.in_both("one", "three")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_dies_around_commit_settles_the_unit_by_the_row(
    server_place: AsyncPlace, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with server_place.engine() as engine, server_place.dual_write(engine) as dual_write:
            await dual_write.recover()
            dialect = engine.dialect
            plain = dialect.do_commit

            def kill_and_commit(connection: Any) -> None:
                monkeypatch.setattr(dialect, "do_commit", plain)
                if when == "after":
                    plain(connection)
                kill_session(server_place.seen, session_of(connection.driver_connection))
                plain(connection)  # asyncpg has nothing to commit any more after the first
                cursor = connection.cursor()
                cursor.execute("SELECT 1")

            monkeypatch.setattr(dialect, "do_commit", kill_and_commit)
            if when == "after":
                await write_unit(dual_write, "one")
            else:
                with pytest.raises(DatabaseUnavailableError):
                    await write_unit(dual_write, "one")
            await write_unit(dual_write, "two")

    run(main())
    assert server_place.in_both(*["one"] * (when == "after"), "two")


def test_a_commit_with_an_unknown_outcome_raises_in_doubt_error(
    sqlite_place: AsyncPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COMMIT fails, and so does every connection after it."""

    async def main() -> None:
        async with sqlite_place.engine() as engine, sqlite_place.dual_write(engine) as dual_write:
            await dual_write.recover()

            def fail(*_: Any) -> None:
                raise OSError("gone")

            def fail_with_all_that_follow(*_: Any) -> None:
                event.listen(engine.sync_engine, "checkout", fail)
                fail()

            with monkeypatch.context() as patch:
                patch.setattr(engine.dialect, "do_commit", fail_with_all_that_follow)
                with pytest.raises(InDoubtError):
                    await write_unit(dual_write, "one")
            event.remove(engine.sync_engine, "checkout", fail)
            await write_unit(dual_write, "two")
            assert dual_write.counters.in_doubt == 1

    run(main())
    assert sqlite_place.in_both("two")


def test_an_outcome_found_by_recovery_is_on_record_until_acknowledged(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
        place.kafka.next_offset = 0  # the cluster was set back
        async with place.engine() as engine, place.dual_write(engine) as dual_write:
            assert await dual_write.recover() == {"orders-0": Outcome.HEURISTIC_HAZARD}
            (found,) = await dual_write.outcomes()
            done = await dual_write.acknowledge(found, by="Ada")
            assert await dual_write.outcomes() == []
            assert await dual_write.outcomes(acknowledged=True) == [done]

    run(main())


def test_a_unit_whose_slot_was_taken_over_commits_on_neither_side(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write(lease_timeout=3000) as dual_write:
            await dual_write.recover()

            async def take_over(tx: AsyncTransaction) -> None:
                TakingStore(place.seen).take_over("orders-0", "another")

            if place.driver == "aiosqlite":  # the unit holds the one write lock: taken over before it begins
                TakingStore(place.seen).take_over("orders-0", "another")
                acts: list[Any] = ["one"]
            else:
                acts = ["one", take_over]
            with pytest.raises(FencedError, match="taken over"):
                await write_unit(dual_write, *acts)
            expire_leases(place.seen)
            await write_unit(dual_write, "two")

    run(main())
    assert place.in_both("two")


def test_a_dead_processs_unit_is_recovered_by_the_first_unit_of_another_process(place: AsyncPlace) -> None:
    """The dead one was blocking, the next is not: one application."""
    kafka = place.kafka
    dead = DualWrite(place.seen, CONFIG, application="orders", participant=kafka.participant, pool_size=1)
    fail_at(kafka, "commit", times=1)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(type(manager_of(dead).process.pool), "abandoned", None, raising=False)
        patch.setattr("dualwrite.coordinator.concurrency.background.Background.start_or_leave", lambda self: None)
        with dead.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            tx.produce("events", value="one")
    manager_of(dead).process.pool.heartbeat.stop(10)
    assert kafka.ongoing is not None
    expire_leases(place.seen)

    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "two")

    run(main())
    assert place.in_both("one", "two")
