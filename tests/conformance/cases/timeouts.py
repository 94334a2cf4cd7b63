"""What the client of a timed-out transaction is answered, for all that it may do next (KIP-360, KIP-588, KIP-890)."""

from collections.abc import Callable

from tests.conformance.cases import case
from tests.conformance.cases.transactions import TV1, TV2, NotingProducer
from tests.support.conformance.subject import Subject
from tests.support.requests.calls import describe
from tests.support.waiting import eventually

_SHORT_MS = 200
_Then = Callable[[NotingProducer, str], None]


class _TimedOutProducer(NotingProducer):
    """A producer whose first transaction times out."""

    def __init__(self, broker: Subject, label: str, version: int) -> None:
        super().__init__(broker, topic=broker.topic())
        self.version = version
        self.init(f"{label}: init", timeout_ms=_SHORT_MS)
        self.former = self.identity
        self._write(label)

    def wait(self) -> None:
        """Return once the coordinator has aborted the transaction."""
        look = lambda: describe(self.broker.client, self.name).transaction_state  # noqa: E731
        assert eventually(look, lambda state: state == "CompleteAbort") == "CompleteAbort"

    def go_on(self, label: str) -> None:
        """What is there now, and a transaction with the identity that the producer has by then."""
        self.describe(f"{label}: then")
        self._write(f"{label}: next")
        self.end(f"{label}: next end", version=5 if self.version == TV2 else 3)

    def _write(self, label: str) -> None:
        if self.version == TV1:
            self.add(f"{label}: add", (self.topic, 0))
        self.send(f"{label}: produce", self.version)


def _after_a_timeout(broker: Subject, version: int, deeds: dict[str, _Then]) -> None:
    actors = {label: _TimedOutProducer(broker, label, version) for label in deeds}
    for actor in actors.values():
        actor.wait()
    for label, actor in actors.items():
        deeds[label](actor, label)
        actor.go_on(label)


def _end(commit: bool, version: int) -> _Then:
    return lambda actor, label: actor.end(f"{label}: late", commit, version)


def _end_twice(version: int) -> _Then:
    def do(actor: NotingProducer, label: str) -> None:
        former = actor.identity
        for step in ("once", "twice"):
            actor.end(f"{label}: {step}", commit=False, version=version, producer=former)

    return do


def _abort_and_init(version: int) -> _Then:
    def do(actor: NotingProducer, label: str) -> None:
        former = actor.identity
        actor.end(f"{label}: abort", commit=False, version=version, producer=former)
        actor.init(f"{label}: init again", expected=former)

    return do


def _init(actor: NotingProducer, label: str) -> None:
    former = actor.identity
    actor.init(f"{label}: as before", expected=former)
    actor.init(f"{label}: once more", expected=former)


def _successor(version: int) -> _Then:
    def do(actor: NotingProducer, label: str) -> None:
        former = actor.identity
        actor.init(f"{label}: anew")
        actor.end(f"{label}: late abort", commit=False, version=version, producer=former)
        actor.init(f"{label}: as before", expected=former)

    return do


@case
def clients_of_the_first_version(broker: Subject) -> None:
    deeds: dict[str, _Then] = {
        "produce": lambda actor, label: actor.send(f"{label}: late", TV1),
        "add": lambda actor, label: actor.add(f"{label}: late", (actor.topic, 0)),
        "commit": _end(commit=True, version=3),
        "abort": _end(commit=False, version=3),
        "abort twice": _end_twice(version=3),
        "abort of the second version": _end(commit=False, version=5),
        "init": _init,
        "abort, init": _abort_and_init(version=3),
        "successor": _successor(version=3),
    }
    _after_a_timeout(broker, TV1, deeds)


@case
def clients_of_the_second_version(broker: Subject) -> None:
    deeds: dict[str, _Then] = {
        "produce": lambda actor, label: actor.send(f"{label}: late", TV2),
        "produce, then abort": _produce_and_abort,
        "commit": _end(commit=True, version=5),
        "abort": _end(commit=False, version=5),
        "abort twice": _end_twice(version=5),
        "abort of the first version": _end(commit=False, version=3),
        "commit of the first version": _end(commit=True, version=3),
        "init": _init,
        "abort, init": _abort_and_init(version=5),
        "successor": _successor(version=5),
    }
    _after_a_timeout(broker, TV2, deeds)


def _produce_and_abort(actor: NotingProducer, label: str) -> None:
    actor.send(f"{label}: late", TV2)
    actor.end(f"{label}: abort", commit=False, version=5)
