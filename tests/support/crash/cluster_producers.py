"""Transactional producers on a cluster that loses nodes and answers: each works in a thread of its own through the
coordinator's KafkaParticipant, as the recipe does, and writes down what it was told."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from dualwrite.client import AsyncTwoPhaseProducer
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.errors import DualWriteError, KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.crash.broker_history import Fate, History, Unit
from tests.support.crash.broker_producers import Worker

Make = Callable[[str], KafkaParticipant]
"""Makes a participant of a transactional id."""

FAILOVER_SECONDS = 40.0
"""How long anything may take over the loss of a node before a test fails."""

PROGRESS_SECONDS = 3 * FAILOVER_SECONDS
"""How long it may take until a worker has come on: to end a unit and begin another session may take several verbs."""

HASTE_SECONDS = 0.8
"""Less than a failover takes: who waits no longer does not learn what became of a commit."""

_PAUSE_SECONDS = 0.025
"""Between two units, so that the nodes that start have a processor too."""


def librdkafka(servers: str) -> Make:
    """Makes participants on confluent-kafka (TV1)."""
    settings = {"bootstrap.servers": servers, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
    return lambda name: LibrdkafkaProducer({**settings, "transactional.id": name})


def native(servers: str, delivery_seconds: float = FAILOVER_SECONDS) -> Make:
    """Makes native producers (TV2) in two-phase commit.

    :param delivery_seconds: how long anything may take before the producer gives up.
    """
    settings = {**_native_settings(servers), "delivery.timeout.ms": int(delivery_seconds * 1000)}
    return lambda name: NativeProducer({**settings, "transactional.id": name})


def asynchronous(servers: str) -> Make:
    """Makes native producers under asyncio, whose transactions expire in time as any other client's do."""
    settings = {
        **_native_settings(servers),
        "delivery.timeout.ms": int(FAILOVER_SECONDS * 1000),
        "transaction.two.phase.commit.enable": False,
        "transaction.timeout.ms": int(FAILOVER_SECONDS * 1000),
    }
    return lambda name: _Asynchronous({**settings, "transactional.id": name})


def _native_settings(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}


class _Asynchronous:
    """As a participant, in an event loop of its own that runs while a verb does."""

    is_reusable = True

    def __init__(self, config: dict[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = AsyncTwoPhaseProducer(config)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self._producer, verb)
        return lambda *arguments, **options: self._loop.run_until_complete(method(*arguments, **options))

    def produce(self, record: OutgoingRecord) -> None:
        self._loop.run_until_complete(self._producer.produce(*record))

    def close(self) -> None:
        try:
            self._loop.run_until_complete(self._producer.close())
        finally:
            self._loop.close()


class Step(Enum):
    """Where a worker can be held."""

    PRODUCED = "produced"
    """Every record was handed to the producer."""
    PREPARED = "prepared"
    """Every record is acknowledged."""


class Decision(Enum):
    """What a worker makes of a unit."""

    COMMIT = "commit"
    ABORT = "abort"
    ABANDON = "abandon"
    """As a crash would: its next session begins while the transaction is open."""


class Stage:
    """Holds a worker between two of its steps, for as long as a test does something to the cluster."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted: Step | None = None
        self._held: Unit | None = None

    def passes(self, step: Step, unit: Unit) -> None:
        """A worker has come to ``step`` with ``unit``; returns when it may go on."""
        with self._changed:
            if self._wanted is step and self._held is None:
                self._held = unit
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._held is not unit, PROGRESS_SECONDS)

    @contextmanager
    def holding(self, step: Step) -> Iterator[Unit]:
        """Hold the next worker that comes to ``step`` for the length of a ``with`` block; what it is at."""
        with self._changed:
            self._wanted = step
            assert self._changed.wait_for(lambda: self._held is not None, PROGRESS_SECONDS), f"nobody {step.value}"
            unit = self._held
            self._wanted = None
        assert unit is not None
        try:
            yield unit
        finally:
            with self._changed:
                self._held = None
                self._changed.notify_all()


class ClusterWorker(Worker):
    """One transactional id: a unit of several records after another, most committed, some aborted, some abandoned.

    :param make: makes its participants.
    :param places: the partitions that it writes to.
    """

    doubt = Fate.UNKNOWN
    """What a commit without an answer means."""

    def __init__(
        self, name: str, make: Make, places: Sequence[TopicPartition], history: History, stage: Stage, seed: int
    ) -> None:
        super().__init__(name, "", "", history, seed)
        self.troubles: Counter[str] = Counter()
        """The errors that it got, by kind and call."""
        self._make = make
        self._places = places
        self._stage = stage

    def work(self) -> None:
        participant = self.begins_session()
        try:
            while self.goes_on():
                goes_well = self.carries_out(participant, self.next_unit(self.some_places()))
                if not (goes_well and participant.is_reusable):
                    participant.close()
                    participant = self.begins_session()
                time.sleep(_PAUSE_SECONDS)
        finally:
            participant.close()

    def some_places(self) -> list[Any]:
        return self.chance.sample(self._places, self.chance.randint(1, 4))

    def begins_session(self) -> KafkaParticipant:
        """A new participant, which has ended whatever its predecessor left open."""
        deadline = time.monotonic() + FAILOVER_SECONDS
        while True:
            participant = self._make(self.name)
            try:
                participant.init_transactions()
            except KafkaUnavailableError as error:
                participant.close()
                self.troubled("init", error)
                if time.monotonic() > deadline:
                    raise
            except BaseException:
                participant.close()
                raise
            else:
                return participant

    def carries_out(self, participant: KafkaParticipant, unit: Unit) -> bool:
        """Write one unit and end it; False if the participant is not to be used any more."""
        wanted = self.decides()
        try:
            self.prepares(participant, unit)
        except (KafkaUnavailableError, PrepareFailedError) as error:
            self.troubled("prepare", error)
            self.history.ended(unit, Fate.ABORTED)  # nobody has ever asked for its commit
            with suppress(DualWriteError):
                participant.abort_transaction()
                return True
            return False
        self._stage.passes(Step.PREPARED, unit)
        if wanted is Decision.ABANDON:
            self.history.ended(unit, Fate.ABORTED)
            return False
        return self.ends(participant, unit, wanted is Decision.COMMIT)

    def decides(self) -> "Decision":
        return self.chance.choices([Decision.COMMIT, Decision.ABORT, Decision.ABANDON], [6, 2, 2])[0]

    def prepares(self, participant: KafkaParticipant, unit: Unit) -> None:
        participant.begin_transaction()
        for place, value in unit.values():
            self.writes(participant, unit, place, value)
        self._stage.passes(Step.PRODUCED, unit)
        participant.prepare_transaction()

    def writes(self, participant: KafkaParticipant, unit: Unit, place: TopicPartition, value: bytes) -> None:
        report = self.reporting(unit, place)
        participant.produce(OutgoingRecord(place.topic, value, partition=place.partition, on_delivery=report))

    def ends(self, participant: KafkaParticipant, unit: Unit, commit: bool) -> bool:
        try:
            if commit:
                participant.commit_transaction()
            else:
                participant.abort_transaction()
        except KafkaUnavailableError as error:
            self.troubled("commit" if commit else "abort", error)
            self.history.ended(unit, self.doubt if commit else Fate.ABORTED)
            return False
        self.history.ended(unit, Fate.COMMITTED if commit else Fate.ABORTED)
        return True

    def reporting(self, unit: Unit, place: TopicPartition) -> Callable[[Any, Any], None]:
        """A delivery report for one record."""

        def report(error: Any, message: Any) -> None:
            if error is None and message.offset() >= 0:  # negative: it is there, and the leader knows no more where
                self.history.acknowledged(unit, place, [message.value()], message.offset())

        return report

    def troubled(self, call: str, error: Exception) -> None:
        self.troubles[f"{call}: {type(error).__name__}"] += 1
