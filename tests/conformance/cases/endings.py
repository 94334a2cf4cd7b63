"""How a transaction ended, read from the log at its first record: ``ended_transaction`` on a broker's answers."""

import time

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.fate.transaction_fate import ended_transaction
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject, Word
from tests.support.requests import calls
from tests.support.requests.calls import add, describe, identity, init, produce, tx_batch
from tests.support.requests.marker_calls import marker, write
from tests.support.waiting import eventually

TV1, TV2 = 1, 2


class Writer:
    """A transactional producer of either version."""

    def __init__(self, broker: Subject, topic: str, version: int) -> None:
        self.broker, self.topic, self.version = broker, topic, version
        self.name = broker.name("tx")
        self.identity = self.initialized()

    def initialized(self) -> ProducerIdentity:
        return identity(self.broker.settled(lambda: init(self.broker.client, self.name, version=4)))

    def write(self, sequence: int = 0, value: bytes = b"a") -> PreparedTxnState:
        """A transaction of one record."""
        client = self.broker.client
        if self.version == TV1:
            add(client, self.name, self.identity, (self.topic, 0))
        now = int(time.time() * 1000)  # an old one and a marker's would be in two segments, and Fetch reads one
        batch = tx_batch([value], self.identity, sequence, now)
        version = 9 if self.version == TV1 else 12
        answer = self.broker.settled(lambda: produce(client, self.topic, batch, self.name, version=version))
        return PreparedTxnState(self.identity, first_record=Anchor(self.topic, 0, answer.base_offset))

    def end(self, commit: bool) -> None:
        """EndTxn, and all of its markers."""
        client, version = self.broker.client, 3 if self.version == TV1 else 5
        answer = self.broker.settled(lambda: calls.end(client, self.name, self.identity, commit, version))
        if self.version == TV2:
            self.identity = identity(answer)
        self.complete()

    def terminate(self) -> None:
        """The abort by force: a plain InitProducerId."""
        self.initialized()
        self.complete()

    def complete(self) -> None:
        look = lambda: describe(self.broker.client, self.name).transaction_state  # noqa: E731
        eventually(look, lambda state: not state.startswith("Prepare"))


def note(broker: Subject, step: str, state: PreparedTxnState) -> None:
    control = ControlPlane({"bootstrap.servers": broker.bootstrap_servers}, timeout=10)
    found = ended_transaction(control, state)
    control.close()
    broker.note(step, ending=Word(found.ending.name), overtaken=found.was_overtaken)


def each_end(broker: Subject, version: int) -> None:
    topic = broker.topic()
    writer = Writer(broker, topic, version)
    states = [writer.write(0)]
    note(broker, "open", states[0])
    writer.end(commit=False)
    states.append(writer.write(1 if version == TV1 else 0))
    writer.end(commit=True)
    states.append(writer.write(2 if version == TV1 else 0))
    writer.terminate()
    for step, state in zip(("aborted", "committed", "terminated"), states, strict=True):
        note(broker, step, state)


@case
def of_the_older_protocol(broker: Subject) -> None:
    each_end(broker, TV1)


@case
def of_the_newer_protocol(broker: Subject) -> None:
    each_end(broker, TV2)


@case
def behind_an_open_transaction(broker: Subject) -> None:
    topic = broker.topic()
    holder, committer, aborter = (Writer(broker, topic, TV2) for _ in range(3))
    holder.write()
    committed, aborted = committer.write(), aborter.write(value=b"x" * 200_000)
    committer.end(commit=True)
    aborter.end(commit=False)
    note(broker, "committed", committed)
    note(broker, "aborted", aborted)
    holder.end(commit=False)
    note(broker, "committed, and nothing is open any more", committed)
    note(broker, "aborted, and nothing is open any more", aborted)


@case
def by_hand_in_the_partition(broker: Subject) -> None:
    topic = broker.topic()
    writer = Writer(broker, topic, TV1)
    state = writer.write()
    write(broker.client, marker(writer.identity, (topic, 0), epoch=100))
    note(broker, "aborted by hand", state)


@case
def of_what_is_not_there(broker: Subject) -> None:
    topic = broker.topic()
    writer = Writer(broker, topic, TV2)
    state = writer.write()
    writer.end(commit=True)
    assert state.first_record is not None
    places = {
        "the end of the log": (state.producer, Anchor(topic, 0, 2)),
        "beyond the end of the log": (state.producer, Anchor(topic, 0, 9)),
        "another epoch's record": (ProducerIdentity(state.producer.producer_id, 9), state.first_record),
        "a marker": (state.producer, Anchor(topic, 0, 1)),
        "no such partition": (state.producer, Anchor(topic, 7, 0)),
        "no such topic": (state.producer, Anchor(broker.name("missing"), 0, 0)),
    }
    for step, (producer, place) in places.items():
        note(broker, step, PreparedTxnState(producer, first_record=place))
