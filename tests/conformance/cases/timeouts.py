"""What the client of a timed-out transaction is answered, for all that it may do next (KIP-360, KIP-588, KIP-890)."""

from collections.abc import Callable

from tests.conformance.cases import case
from tests.conformance.cases.transactions import TV1, TV2, NotingProducer
from tests.support.conformance.subject import Subject
from tests.support.requests.calls import describe
from tests.support.waiting import eventually

_SHORT_MS = 3000
_END = {TV1: 3, TV2: 5}
"""EndTxn's version of a client, by its version of Produce."""


class TimedOutProducer(NotingProducer):
    """A producer whose first transaction times out."""

    def __init__(self, broker: Subject, label: str, version: int) -> None:
        super().__init__(broker, topic=broker.topic())
        self.label = label
        self.version = version
        self.begin_session("init", timeout_ms=_SHORT_MS)
        self.former = self.identity
        self.write()

    def wait(self) -> None:
        """Return once the coordinator has aborted the transaction."""
        look = lambda: describe(self.broker.client, self.name).transaction_state  # noqa: E731
        assert eventually(look, lambda state: state == "CompleteAbort") == "CompleteAbort"

    def begin_session(self, step: str, **more: object) -> None:
        """InitProducerId."""
        self.init(f"{self.label}: {step}", **more)

    def write(self, step: str = "") -> None:
        """One record in a transaction, as a client of this version sends it."""
        if self.version == TV1:
            self.add(f"{self.label}: {step}add", (self.topic, 0))
        self.send(f"{self.label}: {step}produce", self.version)

    def late(self, step: str, commit: bool, version: int = 0) -> None:
        """EndTxn with the identity of the transaction that has timed out."""
        self.end(f"{self.label}: {step}", commit, version or _END[self.version], self.former)

    def go_on(self) -> None:
        """What is there now, and a transaction with the identity that the producer has by then."""
        self.describe(f"{self.label}: then")
        self.write("next ")
        self.end(f"{self.label}: next end", version=_END[self.version])


Deed = Callable[[TimedOutProducer], None]


def produce(actor: TimedOutProducer) -> None:
    actor.send(f"{actor.label}: late", actor.version)


def add(actor: TimedOutProducer) -> None:
    actor.add(f"{actor.label}: late", (actor.topic, 0))


def commit(actor: TimedOutProducer) -> None:
    actor.late("late", commit=True)


def abort_twice(actor: TimedOutProducer) -> None:
    for step in ("once", "twice"):
        actor.late(step, commit=False)


def produce_and_abort(actor: TimedOutProducer) -> None:
    produce(actor)
    actor.late("abort", commit=False)


def end_in_the_other_version(actor: TimedOutProducer) -> None:
    for step, is_commit in (("commit", True), ("abort", False)):
        actor.late(step, is_commit, version=_END[TV1 if actor.version == TV2 else TV2])


def begin_again(actor: TimedOutProducer) -> None:
    for step in ("as before", "once more"):
        actor.begin_session(step, expected=actor.former)


def begin_again_alike(actor: TimedOutProducer) -> None:
    """With the same timeout, as a client of Java does."""
    for step in ("alike", "alike again"):
        actor.begin_session(step, expected=actor.former, timeout_ms=_SHORT_MS)
        actor.describe(f"{actor.label}: after {step}")
    actor.begin_session("with a longer timeout", expected=actor.former)


def abort_and_begin_again(actor: TimedOutProducer) -> None:
    actor.late("abort", commit=False)
    actor.begin_session("again", expected=actor.former)


def meet_a_successor(actor: TimedOutProducer) -> None:
    actor.begin_session("anew")
    actor.late("late", commit=False)
    actor.begin_session("as before", expected=actor.former)


DEEDS: tuple[Deed, ...] = (
    produce,
    commit,
    abort_twice,
    produce_and_abort,
    end_in_the_other_version,
    begin_again,
    begin_again_alike,
    abort_and_begin_again,
    meet_a_successor,
)


@case
def clients_of_both_versions(broker: Subject) -> None:
    wanted = [(TV1, add), *((version, deed) for version in (TV1, TV2) for deed in DEEDS)]
    actors = [
        (TimedOutProducer(broker, f"TV{1 if version == TV1 else 2}, {deed.__name__}", version), deed)
        for version, deed in wanted
    ]
    for actor, _ in actors:
        actor.wait()
    for actor, deed in actors:
        deed(actor)
        actor.go_on()
