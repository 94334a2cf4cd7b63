"""A process that recovers a slot, loses its lock and its lease, and wakes before the last request of its recovery."""

import threading

import pytest
from sqlalchemy import Engine, create_engine, event, insert

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import DualWriteError
from tests.support.coordinator.broker_application import ApplicationPlace
from tests.support.coordinator.event_table import events, expire_leases, stored_values
from tests.support.servers.databases import SERVERS
from tests.support.servers.sessions import kill_session, session_of

PATIENCE = 30.0


class PausedRecovery:
    """A process that is paused before it begins its own session in Kafka. Its lock is gone, and its lease too."""

    def __init__(self, place: ApplicationPlace) -> None:
        self._paused, self._woken = threading.Event(), threading.Event()
        self._place, self._sessions = place, list[int]()
        self._engine = create_engine(place.engine.url)
        event.listen(self._engine, "connect", lambda driver, _: self._sessions.append(session_of(driver)))
        self._dual_write = place.dual_write(engine=self._engine, on_step=self._observe, acquire_timeout=0.2)
        self.error: DualWriteError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._paused.wait(PATIENCE)
        for session in self._sessions:
            kill_session(place.engine, session)
        expire_leases(place.engine)

    def wake(self) -> None:
        """Let it go on, and wait until it has given up."""
        self._woken.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self._dual_write.close(timeout=0)
        self._engine.dispose()

    def _observe(self, step: str) -> None:
        if step == "RECOVER_INIT" and not self._paused.is_set():
            self._paused.set()
            assert self._woken.wait(PATIENCE)

    def _run(self) -> None:
        try:
            write(self._place, self._dual_write, "zombie")
        except DualWriteError as error:
            self.error = error


def write(place: ApplicationPlace, dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce(place.topic, value)


@pytest.mark.parametrize("database_url", SERVERS, indirect=True)
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_it_aborts_no_transaction_that_its_successor_is_about_to_decide(
    engine: Engine, broker: EmbeddedBroker, producer: str
) -> None:
    place = ApplicationPlace(engine, broker, producer)
    zombie = PausedRecovery(place)
    woken: list[str] = []

    def observe(step: str) -> None:
        if step == "STORE_STATE" and not woken:
            woken.append(step)
            zombie.wake()

    with place.dual_write(on_step=observe) as living:
        write(place, living, "living")
        write(place, living, "later")
        assert woken
        assert zombie.error is not None
        assert list(living.outcomes()) == []
    zombie.close()
    assert stored_values(engine) == ["living", "later"]
    assert place.visible() == [b"later", b"living"]
