"""A COMMIT in doubt that took effect, and that the database has forgotten by the time it is looked up.

Meanwhile another process took the slot, saw the decision, and committed it in Kafka; the database has forgotten that
process, too. So the row says, under this process's own lease, that the unit of work was rolled back. Only Kafka's log
knows better.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import InDoubtError
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.support.coordinator.broker_application import ApplicationPlace
from tests.support.coordinator.database_copies import Rows, copied, set_back, state_now
from tests.support.coordinator.event_table import events, expire_leases, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import break_commit, write_unit

Make = Callable[..., DualWrite]


class ForgetfulDatabase:
    """Forgets the COMMIT of the next unit of work, and a process that saw it.

    :param recover: recovers the slot, as another process.
    :param is_looked_up: False to let the process's own look at the row fail the first time.
    """

    def __init__(self, engine: Engine, name: str, recover: Callable[[], object], *, is_looked_up: bool) -> None:
        self._engine, self._name, self._recover, self._is_looked_up = engine, name, recover, is_looked_up
        self._before: Rows | None = None
        self.forgotten = ""
        """The state that it has forgotten."""

    def observe(self, step: str) -> None:
        if self.forgotten:
            return
        if step == "STORE_STATE":
            self._before = copied(self._engine)
        if step == "READ_DECISION" and self._before is not None:
            self.forgotten = state_now(self._engine, self._name)
            expire_leases(self._engine)
            self._recover()
            set_back(self._engine, self._before)
            if not self._is_looked_up:
                raise ConnectionError("lost again")


def write(place: ApplicationPlace, dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce(place.topic, value, partition=0)


@pytest.mark.parametrize("is_looked_up", [True, False], ids=["rolled back", "in doubt"])
@pytest.mark.slow_cases("mariadb", "postgresql")
def test_a_forgotten_commit_in_doubt_is_on_record_before_the_next_unit_of_work(
    engine: Engine, make_dual_write: Make, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, is_looked_up: bool
) -> None:
    def recover() -> None:
        with make_dual_write(engine) as heir:
            assert list(heir.recover().values()) == [Outcome.COMMITTED]

    database = ForgetfulDatabase(engine, "orders-0", recover, is_looked_up=is_looked_up)
    dual_write = make_dual_write(engine, lease_timeout=3600, on_step=database.observe)
    dual_write.recover()
    break_commit(engine, monkeypatch, after_effect=True, error=ConnectionError("lost"))
    with pytest.raises(ConnectionError if is_looked_up else InDoubtError):
        write_unit(dual_write, "one")
    write_unit(dual_write, "two")
    found = [(outcome.state, outcome.outcome) for outcome in dual_write.outcomes()]
    assert found == [(database.forgotten, Outcome.HEURISTIC_COMMIT)]
    assert (stored_values(engine), kafka.committed) == (["two"], ["one", "two"])
    assert dual_write.counters.heuristic == 1


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.slow_cases("mariadb", "postgresql")
def test_a_forgotten_commit_that_the_database_does_not_take_at_first_is_on_record_once(
    engine: Engine, make_dual_write: Make, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    def recover() -> None:
        with make_dual_write(engine) as heir:
            assert list(heir.recover().values()) == [Outcome.COMMITTED]

    def refuse_record(step: str) -> None:
        database.observe(step)
        if step == "RECOVER_RECORD" and not refused:
            refused.append(step)
            break_commit(engine, monkeypatch, after_effect=is_recorded, error=ConnectionError("lost"))

    refused: list[str] = []
    database = ForgetfulDatabase(engine, "orders-0", recover, is_looked_up=True)
    dual_write = make_dual_write(engine, lease_timeout=3600, on_step=refuse_record)
    dual_write.recover()
    break_commit(engine, monkeypatch, after_effect=True, error=ConnectionError("lost"))
    with pytest.raises(ConnectionError):
        write_unit(dual_write, "one")
    assert dual_write.wait_idle(timeout=30)
    write_unit(dual_write, "two")
    found = [(outcome.state, outcome.outcome) for outcome in dual_write.outcomes()]
    assert found == [(database.forgotten, Outcome.HEURISTIC_COMMIT)]
    assert (stored_values(engine), kafka.committed, refused) == (["two"], ["one", "two"], ["RECOVER_RECORD"])


@pytest.mark.parametrize("two_phase", ["keep-prepared", "resume"])
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_the_log_of_a_broker_shows_that_a_forgotten_commit_reached_kafka(
    sqlite_engine: Engine,
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    producer: str,
    two_phase: str,
) -> None:
    place = ApplicationPlace(sqlite_engine, broker, producer)
    place.options = {"two_phase": two_phase, "lease_timeout": 3600}

    def recover() -> None:
        with place.dual_write() as heir:
            assert list(heir.recover().values()) == [Outcome.COMMITTED]

    database = ForgetfulDatabase(sqlite_engine, f"{place.application}-0", recover, is_looked_up=True)
    with place.dual_write(on_step=database.observe) as dual_write:
        dual_write.recover()
        break_commit(sqlite_engine, monkeypatch, after_effect=True, error=ConnectionError("lost"))
        with pytest.raises(ConnectionError):
            write(place, dual_write, "one")
        write(place, dual_write, "two")
        (found,) = dual_write.outcomes()
    assert found.outcome is Outcome.HEURISTIC_COMMIT
    assert found.state.startswith(database.forgotten), "it may say besides where the transaction began"
    assert stored_values(sqlite_engine) == ["two"]
    assert place.visible() == [b"one", b"two"]


@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_a_forgotten_commit_that_reaches_an_apache_kafka_as_late_as_it_can_is_on_record(
    sqlite_engine: Engine, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producer: str
) -> None:
    """Without KIP-939, recovery's InitProducerId would abort the transaction; so it fences nobody until the end."""
    place = ApplicationPlace(sqlite_engine, broker, producer)
    place.options = {"two_phase": "resume", "lease_timeout": 3600}
    name = f"{place.application}-0"

    def observe(step: str) -> None:
        database.observe(step)
        if step == "ABORT_KAFKA":
            raise ConnectionError("left to recovery")
        if step == "RECOVER_COMPLETE" and database.forgotten and not late:
            late.append(PreparedTxnState(database.forgotten).producer)
            with closing(place.control()) as heir:
                heir.end_txn(name, late[0], committed=True, bumps_epoch=True)

    late: list[ProducerIdentity] = []
    database = ForgetfulDatabase(sqlite_engine, name, lambda: None, is_looked_up=True)
    with place.dual_write(on_step=observe) as dual_write:
        dual_write.recover()
        break_commit(sqlite_engine, monkeypatch, after_effect=True, error=ConnectionError("lost"))
        with pytest.raises(ConnectionError):
            write(place, dual_write, "one")
        write(place, dual_write, "two")
        assert [outcome.outcome for outcome in dual_write.outcomes()] == [Outcome.HEURISTIC_COMMIT]
    assert (place.visible(), stored_values(sqlite_engine)) == ([b"one", b"two"], ["two"])


@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_a_commit_that_never_arrived_leaves_nothing_on_record(
    sqlite_engine: Engine, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producer: str
) -> None:
    place = ApplicationPlace(sqlite_engine, broker, producer)

    def observe(step: str) -> None:
        if step == "ABORT_KAFKA":
            raise ConnectionError("left to recovery")

    with place.dual_write(on_step=observe) as dual_write:
        dual_write.recover()
        break_commit(sqlite_engine, monkeypatch, after_effect=False, error=ConnectionError("lost"))
        with pytest.raises(ConnectionError):
            place.write(dual_write, "one")
        place.write(dual_write, "two")
        assert dual_write.outcomes() == []
    assert place.visible() == [b"two"]
