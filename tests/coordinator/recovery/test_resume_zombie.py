"""A predecessor that is alive while its successor recovers, where no broker fences it: wherever it goes on."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from dualwrite.coordinator.branch import Branches
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.sql.lease_transfer import TransferredLeases
from dualwrite.coordinator.sql.unit_bounds import begin_unit
from dualwrite.coordinator.unit import beginning as unit_beginning
from dualwrite.errors import DualWriteError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, ready_engine, stored_values
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka
from tests.support.servers.databases import SERVERS

Write = Callable[[DualWrite, str], None]

PATIENCE = 20.0
STEPS = ["BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE", "COMMIT_KAFKA"]
"""Before COMMIT_DATABASE it holds the row, and nobody recovers until it has gone on."""


on_a_server = pytest.mark.parametrize("database_url", SERVERS, indirect=True)
"""Where others can read while a row is locked: SQLite would keep the zombie waiting."""


class Zombie:
    """A process that is paused at its first ``step``, and goes on when it is told to.

    :param second: how it writes what comes then: as a unit of work, or as a branch.
    """

    def __init__(self, engine: Engine, kafka: ResumingKafka, step: str, second: "Write | None" = None) -> None:
        self._paused, self._woken, self._done = threading.Event(), threading.Event(), threading.Event()
        self._step = step
        self._writes = {"first": write, "second": second or write}
        self._rests = threading.Event()
        self.told: dict[str, str] = {}
        self.dual_write = DualWrite(
            engine,
            CONFIG,
            application="a",
            pool_size=1,
            acquire_timeout=0.2,
            participant=kafka.participant,
            two_phase="resume",
            on_step=self._observe,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def pause(self) -> None:
        """Run until it is paused."""
        self._thread.start()
        assert self._paused.wait(PATIENCE)

    def go_on(self) -> None:
        """Until it has ended, or waits for the row that its successor holds."""
        self._woken.set()
        assert self._rests.wait(PATIENCE)

    def join(self) -> None:
        assert self._done.wait(PATIENCE)
        self._thread.join()
        self.dual_write.close(timeout=0)

    def _observe(self, step: str) -> None:
        if step == self._step and not self._paused.is_set():
            self._paused.set()
            assert self._woken.wait(PATIENCE)
        elif self._woken.is_set() and (step in ("STORE_STATE", "TRANSFER_LEASE") or step.startswith("RECOVER")):
            self._rests.set()

    def _run(self) -> None:
        for value, write_it in self._writes.items():
            try:
                write_it(self.dual_write, value)
                self.told[value] = "succeeded"
            except DualWriteError as error:
                self.told[value] = type(error).__name__
        self._done.set()
        self._rests.set()


def successor(engine: Engine, kafka: ResumingKafka) -> DualWrite:
    expire_leases(engine)
    options: Any = {"pool_size": 1, "participant": kafka.participant, "two_phase": "resume"}
    return DualWrite(engine, CONFIG, application="a", **options)


def write(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value)


def in_branch(engine: Engine) -> Write:
    """A task of a Spark batch: its row would follow with the decision."""
    leases = TransferredLeases(engine)

    def write_it(dual_write: DualWrite, value: str) -> None:
        branches = Branches(manager_of(dual_write))

        def sign(lease: Lease) -> Lease:
            with branches.store.transaction(commit=True) as connection:
                return leases.transfer(connection, lease, "run 1", 1000.0)

        with branches.branch() as branch:
            branch.produce(OutgoingRecord("events", value))
            branch.prepare()
            branch.transfer(sign)

    return write_it


@pytest.mark.slow_cases
@on_a_server
@pytest.mark.parametrize("step", STEPS)
def test_a_zombie_resuming_after_recovery_changes_nothing(engine: Engine, step: str) -> None:
    kafka = ResumingKafka()
    zombie = Zombie(engine, kafka, step)
    zombie.pause()
    with successor(engine, kafka) as living:
        write(living, "living")
        zombie.go_on()
        zombie.join()
        write(living, "later")
    assert kafka.committed == stored_values(engine)
    assert ("first" in kafka.committed) is (step == "COMMIT_KAFKA") is (zombie.told["first"] == "succeeded")


@pytest.mark.slow_cases
@on_a_server
@pytest.mark.parametrize("request_name", ["look", "end"])
def test_a_zombie_resuming_during_recovery_gets_no_second_unit_committed(engine: Engine, request_name: str) -> None:
    """It has decided for its first unit, and is paused before it says so to Kafka. Its successor sees that transaction
    open. Now the zombie ends it, and would go on to its second unit under the same epoch; and then the successor's
    EndTxn arrives."""
    kafka = race(engine, request_name)
    assert kafka.committed == ["first", "living"] == stored_values(engine)


@pytest.mark.slow_cases
@on_a_server
@pytest.mark.parametrize("request_name", ["look", "end"])
def test_a_zombie_resuming_during_recovery_gets_no_branch_committed(engine: Engine, request_name: str) -> None:
    """The same, if it goes on to a branch, whose rows are not written."""
    kafka = race(engine, request_name, in_branch(engine))
    assert kafka.committed == ["first", "living"] == stored_values(engine)


@pytest.mark.postgresql
def test_without_the_lease_check_a_zombies_second_unit_would_be_committed(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    engine = ready_engine(postgresql_url)
    monkeypatch.setattr(unit_beginning, "begin_unit", lambda connection, lease, checked: begin_unit(connection, lease))
    kafka = race(engine, "end")
    assert "second" in kafka.committed
    assert "second" not in stored_values(engine)
    engine.dispose()


def race(engine: Engine, request_name: str, second: Write = write) -> ResumingKafka:
    kafka = ResumingKafka()
    zombie = Zombie(engine, kafka, "COMMIT_KAFKA", second)
    zombie.pause()
    main = threading.get_ident()

    def wake(request: str) -> None:
        if request == request_name and threading.get_ident() == main:
            zombie.go_on()

    kafka.before_effect = wake
    with successor(engine, kafka) as living:
        living.recover()
        kafka.before_effect = lambda request: None
        zombie.join()
        write(living, "living")
    assert zombie.told["first"] == "succeeded"
    assert zombie.told["second"] != "succeeded"
    return kafka
