"""Units of work where nothing keeps what is prepared: on the bundled broker, with both producers.

What Apache Kafka does is tested in tests/conformance; here is what does not depend on the broker.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from dualwrite import DualWrite, EmbeddedBroker
from dualwrite.cli.main import main
from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import ConfigurationError, DualWriteError, KafkaRefusedError
from tests.support.coordinator.event_table import events, expire_leases, ready_engine, stored_values
from tests.support.crash.world import free_port
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_helpers import fresh_name, visible
from tests.support.waiting import eventually

LONG_MS, SHORT_MS = 60_000, 1_500
PATIENCE = 20.0
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    "transaction.max.timeout.ms": "900000",
}

either_producer = pytest.mark.parametrize("producer", ["native", "librdkafka"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=SETTINGS) as running:
        yield running


@pytest.fixture
def control(broker: EmbeddedBroker) -> Iterator[ControlPlane]:
    made = ControlPlane({"bootstrap.servers": broker.bootstrap_servers})
    yield made
    made.close()


class ResumeWorld:
    """An application on one topic, and what is on both sides."""

    def __init__(self, broker: EmbeddedBroker, engine: Engine, control: ControlPlane, producer: str) -> None:
        self.engine = engine
        self.name = fresh_name()
        self.control = control
        self.bootstrap_servers = broker.bootstrap_servers
        self._producer = producer
        self._made: list[DualWrite] = []

    def start(self, timeout_ms: int | None = LONG_MS, **options: Any) -> DualWrite:
        kafka: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers}
        if timeout_ms is not None:
            kafka["transaction.timeout.ms"] = timeout_ms
        options = {"two_phase": "resume", "producer": self._producer, **options}
        self._made.append(DualWrite(self.engine, kafka, application=self.name, pool_size=1, **options))
        return self._made[-1]

    def write(self, dual_write: DualWrite, value: str, lasting: float = 0.0) -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=value))
            tx.produce(self.name, value.encode())
            threading.Event().wait(lasting)

    def die_at(self, step: str, value: str, **options: Any) -> None:
        """A process that does nothing any more once it has come to ``step``."""
        dead: list[str] = []

        def observe(name: str) -> None:
            if dead or name == step:
                dead.append(name)
                raise SystemExit

        with pytest.raises(SystemExit):
            self.write(self.start(on_step=observe, **options), value)
        expire_leases(self.engine)

    def described(self) -> TransactionDescription:
        described = self.control.describe_transaction(f"{self.name}-0")
        assert described is not None
        return described

    def abort_by_force(self) -> None:
        """As an operator does; it has the same effect as the timeout, and no wait."""
        self.control.init_producer_id(
            f"{self.name}-0", transaction_timeout_ms=LONG_MS, two_phase_commit=False, keep_prepared_txn=False
        )

    def until_it_times_out(self) -> None:
        described = eventually(self.described, lambda seen: seen.state == "CompleteAbort", PATIENCE)
        assert described.state == "CompleteAbort", f"it did not time out: {described}"

    @property
    def in_kafka(self) -> list[str]:
        return [value.decode() for value in visible(self.bootstrap_servers, self.name)]

    @property
    def in_database(self) -> list[str]:
        return stored_values(self.engine)

    def close(self) -> None:
        for dual_write in self._made:
            dual_write.close(timeout=0)


@pytest.fixture
def make_world(broker: EmbeddedBroker, control: ControlPlane, tmp_path: Path) -> Iterator[Callable[[str], ResumeWorld]]:
    engine = ready_engine(f"sqlite:///{tmp_path}/rows.db")
    made: list[ResumeWorld] = []

    def make(producer: str) -> ResumeWorld:
        made.append(ResumeWorld(broker, engine, control, producer))
        return made[-1]

    yield make
    for world in made:
        world.close()
    engine.dispose()


@pytest.mark.slow_cases
@either_producer
def test_transactions_of_resume_mode_have_a_timeout(make_world: Callable[[str], ResumeWorld], producer: str) -> None:
    world = make_world(producer)
    seen: list[TransactionDescription] = []
    with world.start(timeout_ms=None) as dual_write, dual_write.transaction() as tx:
        tx.produce(world.name, b"one")
        seen.append(world.described())
    assert [described.timeout_ms for described in seen] == [900_000]
    assert world.in_kafka == ["one"]


@pytest.mark.slow_cases
@either_producer
@pytest.mark.parametrize(
    ("step", "found"),
    [
        ("STORE_STATE", Outcome.ABORTED),
        ("COMMIT_DATABASE", Outcome.ABORTED),
        ("COMMIT_KAFKA", Outcome.COMMITTED),
    ],
)
def test_a_dead_processs_transaction_is_ended_as_the_database_decided(
    make_world: Callable[[str], ResumeWorld], producer: str, step: str, found: Outcome
) -> None:
    world = make_world(producer)
    with world.start() as before:
        world.write(before, "first")
    world.die_at(step, "second")
    with world.start() as survivor:
        assert survivor.recover() == {f"{world.name}-0": found}
        world.write(survivor, "third")
    assert world.in_kafka == world.in_database
    assert ("second" in world.in_kafka) is (found is Outcome.COMMITTED)


@either_producer
def test_each_producer_recovers_the_other_producers_transaction(
    make_world: Callable[[str], ResumeWorld], producer: str
) -> None:
    world = make_world(producer)
    (other,) = {"native", "librdkafka"} - {producer}
    world.die_at("COMMIT_KAFKA", "one")
    with world.start(producer=other) as survivor:
        assert survivor.recover() == {f"{world.name}-0": Outcome.COMMITTED}
    assert world.in_kafka == world.in_database == ["one"]


@pytest.mark.slow_cases
@either_producer
@pytest.mark.parametrize("replay", [True, False])
def test_an_abort_after_the_decision_is_replayed_or_on_record(
    make_world: Callable[[str], ResumeWorld], producer: str, replay: bool
) -> None:
    world = make_world(producer)
    world.die_at("COMMIT_KAFKA", "lost", replay=replay)
    world.abort_by_force()
    with world.start(replay=replay) as survivor:
        found = survivor.recover()
        assert found == {f"{world.name}-0": Outcome.REPLAYED if replay else Outcome.HEURISTIC_ABORT}
        world.write(survivor, "later")
        assert len(survivor.outcomes()) == (not replay)
    assert world.in_database == ["lost", "later"]
    assert world.in_kafka == (["lost", "later"] if replay else ["later"])


@pytest.mark.slow
@either_producer
def test_a_timeout_after_the_decision_is_replayed(make_world: Callable[[str], ResumeWorld], producer: str) -> None:
    world = make_world(producer)
    world.die_at("COMMIT_KAFKA", "lost", replay=True, timeout_ms=SHORT_MS)
    world.until_it_times_out()
    with world.start(replay=True) as survivor:
        assert survivor.recover() == {f"{world.name}-0": Outcome.REPLAYED}
    assert world.in_kafka == world.in_database == ["lost"]


@either_producer
def test_an_abort_before_the_decision_leaves_nothing_on_either_side(
    make_world: Callable[[str], ResumeWorld], producer: str
) -> None:
    world = make_world(producer)
    world.die_at("COMMIT_DATABASE", "undone", replay=True)
    world.abort_by_force()
    with world.start(replay=True) as survivor:
        assert survivor.recover() == {f"{world.name}-0": Outcome.NOTHING}
        world.write(survivor, "later")
    assert world.in_kafka == world.in_database == ["later"]


@pytest.mark.slow
@either_producer
def test_a_broker_that_has_lost_the_last_unit_is_found(tmp_path: Path, producer: str) -> None:
    """Its coordinator says that the producer's last transaction was committed: it means the one before."""
    home, copy = tmp_path / "broker", tmp_path / "copy"
    broker = ForkedBroker(home, listen=f"127.0.0.1:{free_port()}", config=SETTINGS)
    engine = ready_engine(f"sqlite:///{tmp_path}/rows.db")
    broker.start()
    control = ControlPlane({"bootstrap.servers": broker.bootstrap_servers})
    world = ResumeWorld(broker, engine, control, producer)
    living = world.start()
    world.write(living, "first")
    broker.stop()
    shutil.copytree(home, copy)
    broker.start()
    world.write(living, "lost")
    living.close()
    broker.stop()
    shutil.rmtree(home)
    copy.rename(home)
    broker.start()
    with world.start() as survivor:
        assert survivor.recover() == {f"{world.name}-0": Outcome.HEURISTIC_HAZARD}
    world.close()
    control.close()
    broker.stop()
    engine.dispose()


@pytest.mark.slow_cases
@either_producer
@pytest.mark.parametrize("replay", [True, False])
def test_a_unit_aborted_by_force_after_its_decision_counts_as_committed(
    make_world: Callable[[str], ResumeWorld], producer: str, replay: bool
) -> None:
    world = make_world(producer)
    aborted: list[str] = []

    def abort_once(step: str) -> None:
        if step == "COMMIT_KAFKA" and not aborted:
            aborted.append(step)
            world.abort_by_force()

    living = world.start(replay=replay, on_step=abort_once)
    world.write(living, "lost")
    living.recover()
    assert [outcome.outcome for outcome in living.outcomes()] == [Outcome.HEURISTIC_ABORT] * (not replay)
    assert (living.counters.committed, living.counters.heuristic, living.counters.replayed) == (1, 1, replay)
    world.write(living, "later")
    assert world.in_database == ["lost", "later"]
    assert world.in_kafka == (["lost", "later"] if replay else ["later"])


@pytest.mark.slow
@either_producer
def test_a_unit_that_lasts_too_long_is_undone_on_both_sides(
    make_world: Callable[[str], ResumeWorld], producer: str
) -> None:
    world = make_world(producer)
    with world.start(timeout_ms=SHORT_MS) as dual_write, pytest.raises(DualWriteError) as caught:
        world.write(dual_write, "long", lasting=SHORT_MS / 1000)
    assert caught.value.retriable
    with world.start() as dual_write:
        world.write(dual_write, "short")
    assert world.in_kafka == world.in_database == ["short"]


@either_producer
def test_a_timeout_that_the_cluster_does_not_take_is_named(
    make_world: Callable[[str], ResumeWorld], producer: str
) -> None:
    world = make_world(producer)
    with pytest.raises(KafkaRefusedError, match=r"transaction\.max\.timeout\.ms.*INVALID_TRANSACTION_TIMEOUT"):
        world.write(world.start(timeout_ms=900_001), "never")


def test_an_invalid_timeout_is_refused(make_world: Callable[[str], ResumeWorld]) -> None:
    with pytest.raises(ConfigurationError, match=r"transaction\.timeout\.ms"):
        make_world("librdkafka").start(timeout_ms="soon").recover()  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"transaction\.timeout\.ms"):
        make_world("native").start(timeout_ms="soon")  # type: ignore[arg-type]


def test_the_default_producer_is_the_native_one(make_world: Callable[[str], ResumeWorld]) -> None:
    world = make_world("native")
    with world.start(producer=None) as dual_write:
        world.write(dual_write, "one")
        assert dual_write.producer == "native"


@pytest.mark.parametrize("command", ["recover", "resolve"])
def test_an_operator_gives_the_mode_of_the_application(
    make_world: Callable[[str], ResumeWorld], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    world = make_world("native")
    world.die_at("COMMIT_KAFKA", "one")
    verb = ["recover"] if command == "recover" else ["transactions", "resolve", "--yes"]
    where = ["--db", str(world.engine.url), "--bootstrap-servers", world.bootstrap_servers]
    assert main([*verb, *where, "--application", world.name, "--two-phase", "resume"]) == 0
    assert f"{world.name}-0: committed" in capsys.readouterr().out
    assert world.in_kafka == world.in_database == ["one"]


def test_a_load_runs_on_a_cluster_without_keep_prepared(
    make_world: Callable[[str], ResumeWorld], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world("native")
    file = tmp_path / "events.csv"
    file.write_text("value\none\ntwo\n")
    where = ["--db", str(world.engine.url), "--bootstrap", world.bootstrap_servers, "--two-phase", "resume"]
    assert (
        main(["load", str(file), *where, "--table", "events", "--topic", world.name, "--application", world.name]) == 0
    )
    assert "loaded 2 rows" in capsys.readouterr().out
    assert world.described().timeout_ms == 900_000
    assert world.in_database == ["one", "two"]
