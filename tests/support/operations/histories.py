"""Slots with every history in Kafka and every row in the database, made without a DualWrite."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from sqlalchemy import insert

from dualwrite.coordinator.kafka.choice import ProducerChoice
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.rules.two_phase import KEEP_PREPARED, completed_config
from dualwrite.coordinator.sql.state_row import row_values
from dualwrite.coordinator.sql.tables import UNRECOVERED, kafka_transaction_state
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.operations.places import OperationsSite

NOW = datetime.now(timezone.utc)
STATUSES: Mapping[str, Mapping[str, Any]] = {
    "free": {"owner": ""},
    "given back elsewhere": {"owner": "", "cluster_id": "another-cluster-id"},
    "expired": {"owner": "elsewhere:1 - - x", "lease_expires_at": NOW - timedelta(hours=1)},
    "held": {"owner": "elsewhere:1 - - x", "lease_expires_at": NOW + timedelta(days=1)},
    "foreign": {
        "owner": "elsewhere:1 - - x",
        "lease_expires_at": NOW - timedelta(hours=1),
        "cluster_id": "another-cluster-id",
    },
}
"""The columns that make a row's SlotStatus."""

HISTORIES = {
    "unknown": "",
    "initialized": "i",
    "committed": "c",
    "committed twice": "cc",
    "open": "o",
    "committed, open": "co",
    "committed twice, open": "cco",
    "aborted": "a",
    "aborted by force": "f",
    "committed, aborted by force": "cf",
}
"""What has happened in Kafka under a transactional id, as letters for :func:`lived`."""


class Case(NamedTuple):
    """One slot: what happened in Kafka, what its row stores, and its columns."""

    history: str
    stored: str
    state: PreparedTxnState
    columns: Mapping[str, Any]


def lived(site: OperationsSite, name: str, history: str, producer: str, partition: int) -> list[PreparedTxnState]:
    """Carry out ``history`` under the transactional id ``name``; return the state of each transaction."""
    config = {**completed_config(site.broker.client_config, KEEP_PREPARED), "transactional.id": name}
    choice = ProducerChoice(config, producer)
    states: list[PreparedTxnState] = []
    if not history:
        return states
    participant = choice.participant(name)
    participant.init_transactions()
    for letter in history.strip("i"):
        states.append(_prepared(participant, site.topic, partition))
        if letter == "c":
            participant.commit_transaction()
        elif letter == "a":
            participant.abort_transaction()
    participant.close()
    if history.endswith("f"):
        site.ask(
            lambda control: control.init_producer_id(
                name, transaction_timeout_ms=60_000, two_phase_commit=False, keep_prepared_txn=False
            )
        )
    return states


def _prepared(participant: KafkaParticipant, topic: str, partition: int) -> PreparedTxnState:
    participant.begin_transaction()
    participant.produce(OutgoingRecord(topic, b"value", partition=partition))
    return participant.prepare_transaction()


def stored_states(states: list[PreparedTxnState], end: int) -> dict[str, PreparedTxnState]:
    """What a state row may hold beside ``states``, the transactions that there were: those of a newer and of an older
    copy, of another cluster, and what is left of a state if evidence is missing.

    :param end: an offset that the log has not reached.
    """
    stored = {"nothing": PreparedTxnState(), "another producer's": PreparedTxnState(ProducerIdentity(10**9, 0))}
    for number, state in enumerate(states):
        stored[f"transaction {number}"] = state
    if states:
        last = states[-1]
        first = last.first_record
        assert first is not None
        beyond, later = Anchor(first.topic, first.partition, end), epochs_later(last.producer, 5)
        stored["without evidence"] = PreparedTxnState(last.producer)
        stored["later than the cluster's"] = PreparedTxnState(later)
        stored["later, in the log of another"] = PreparedTxnState(later, first_record=first)
        stored["beyond the log's end"] = PreparedTxnState(last.producer, first_record=beyond)
        stored["in a topic made anew"] = replace(last, topic_id="A" * 22)
    return stored


def epochs_later(producer: ProducerIdentity, epochs: int) -> ProducerIdentity:
    """The identity of the same producer id after ``epochs`` more transactions."""
    return ProducerIdentity(producer.producer_id, producer.epoch + epochs)


def insert_row(site: OperationsSite, name: str, case: Case) -> None:
    """The state row of the slot ``name``."""
    values = {"fencing_token": 12, "updated_at": NOW, **row_values(case.state), **case.columns}
    with site.engine.begin() as connection:
        connection.execute(insert(kafka_transaction_state).values(transactional_id=name, **values))


def cases(site: OperationsSite, producer: str, partitions: int) -> dict[str, Case]:
    """Make one slot for each combination of a history and a row; return them by transactional id."""
    made: dict[str, Case] = {}

    def make(history: str, stored: str, columns: Mapping[str, Any]) -> list[str]:
        name = site.slot(len(made))
        states = lived(site, name, HISTORIES[history], producer, len(made) % partitions)
        choices = stored_states(states, 10**6)
        made[name] = Case(history, stored, choices[stored], columns)
        insert_row(site, name, made[name])
        return list(choices)

    for history in HISTORIES:
        for stored in make(history, "nothing", STATUSES["free"])[1:]:
            make(history, stored, STATUSES["free" if len(made) % 2 else "expired"])
        make(history, "nothing", {**STATUSES["expired"], "outcome": UNRECOVERED})
        for stored in ("nothing", "another producer's", *(["transaction 0"] if HISTORIES[history].strip("i") else [])):
            make(history, stored, STATUSES["given back elsewhere"])
    return made
