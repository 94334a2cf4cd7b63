"""The objects of a UnitManager that belong to one process: locks, threads, leases, producers, consumers.

A forked child makes its own; its parent's stay as they are (after_fork.py).
"""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Engine

from dualwrite.coordinator.kafka.choice import ProducerChoice
from dualwrite.coordinator.kafka.control_plane_recovery import by_control_plane, by_participants
from dualwrite.coordinator.kafka.known_cluster import KnownCluster
from dualwrite.coordinator.kafka.refusal import kafka_refusal
from dualwrite.coordinator.manager.settings import NEEDS_NATIVE, ManagerSettings
from dualwrite.coordinator.offsets.consuming import Consuming
from dualwrite.coordinator.ports.kafka import CommitsInBackground, KafkaParticipant
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.recovery.bulk import Recoverers
from dualwrite.coordinator.replay.replay import Replayer, SweepReplays
from dualwrite.coordinator.rules.identities import ClusterIdentity
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.sweeper import Sweeper
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.errors import ConfigurationError, KafkaUnavailableError


class ProcessObjects:
    """The objects of one process.

    :param engine: for the library's own transactions, in any thread.
    :param replayer: None without ``replay``.
    :param worker: returns the caller: its thread, or its task.
    """

    def __init__(
        self,
        settings: ManagerSettings,
        engine: Engine,
        store: SqlDecisionStore,
        replayer: Replayer | None,
        worker: Callable[[], object],
    ) -> None:
        self.pid = os.getpid()
        self.counters = Counters(THIS_PROCESS.lock())
        self.choice: ProducerChoice | None = None
        """None with a participant of the user's own."""
        self.kafka_refusal: Callable[[], KafkaUnavailableError | None] = _never
        """Says why no unit of work can have records now; None if one may."""
        recoverers: Recoverers
        make: Callable[[str], KafkaParticipant]
        cluster: Callable[[], ClusterIdentity] = ClusterIdentity
        if settings.participant is None:
            self.choice = ProducerChoice(settings.kafka, settings.producer)
            self.kafka_refusal = functools.partial(kafka_refusal, settings.kafka)
            known = cluster = KnownCluster(settings.kafka, with_log_directory=store.is_file)
            make = functools.partial(_made_in, known, self.choice)
            recoverers = functools.partial(by_control_plane, settings.kafka, known.require_same)
        else:
            make = functools.partial(_made_by, settings.participant, settings.kafka)
            recoverers = functools.partial(by_participants, make)
        if settings.sends_commit:
            make = functools.partial(_sending_commits, make)
        repair = repairs = None
        if replayer is not None:
            make = replayer.watching(make)
            repair, repairs = replayer.replay, SweepReplays(replayer, make, self.counters, settings.observe)
        self.consuming = Consuming(engine, store, worker)
        runtime, name, leases = THIS_PROCESS, settings.application, SqlLeases(engine, store)
        registry = LeaseRegistry(runtime, leases, name, runtime.new_owner(), settings.pool.lease_timeout, cluster)
        observe, counters = settings.observe, self.counters
        self.sweeper = Sweeper(runtime, registry, store, recoverers, counters, observe, repairs)
        self.pool = Pool(runtime, settings.pool, store, registry, self.sweeper, make, counters, observe, repair)


def _never() -> None:
    """A participant of the user's own says itself that it cannot be reached."""


def _made_in(cluster: KnownCluster, choice: ProducerChoice, transactional_id: str) -> KafkaParticipant:
    """The participant of ``transactional_id`` in the cluster that the process began with."""
    cluster.require_same()
    return choice.participant(transactional_id)


def _sending_commits(make: Callable[[str], KafkaParticipant], transactional_id: str) -> KafkaParticipant:
    """The participant of ``make``, which must be able to send a commit without waiting for its answer."""
    participant = make(transactional_id)
    if not isinstance(participant, CommitsInBackground):
        participant.close()
        raise ConfigurationError(NEEDS_NATIVE.format(type(participant).__name__))
    return participant


def _made_by(
    participant: Callable[[Mapping[str, Any]], KafkaParticipant], config: Mapping[str, Any], transactional_id: str
) -> KafkaParticipant:
    """The user's own participant of ``transactional_id``."""
    return participant({**config, "transactional.id": transactional_id})
