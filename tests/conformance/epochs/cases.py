"""What happens to a producer id whose epochs are used up (KAFKA-20090, KAFKA-20310, KAFKA-20357), also after a restart.

An epoch grows by one with each InitProducerId, so 32,767 of them lead to the last one that a client gets. The ids of
all cases climb at the same time, and all cases share each restart.
"""

from collections.abc import Callable
from typing import Protocol

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import ApiKey, InitProducerIdRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.conformance.subject import Subject
from tests.support.requests import calls
from tests.support.requests.calls import end, identity, init, tx_batch
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

LAST_EPOCH = 32_766
"""A client gets no later one: 32,767 is for the markers that fence it (Kafka: isEpochExhausted)."""
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.initial.task.delay.ms": "3600000",
}
VERSION = 4
_AT_ONCE = 200
_SHORT_MS, _LONG_MS = 1000, 60_000


class Restartable(Protocol):
    """A broker that is killed and started again at the same address."""

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT."""

    def kill(self) -> None:
        """SIGKILL."""

    def start(self) -> object:
        """Start it again."""


class EpochSender:
    """A transactional id at its last epoch, and a topic of its own."""

    def __init__(self, broker: Subject, label: str) -> None:
        self.broker = broker
        self.label = label
        self.topic = broker.topic()
        self.name = broker.name("tx")
        self.old = ProducerIdentity(-1, -1)

    def note(self, step: str, answer: Message) -> None:
        seen = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self.broker.note(f"{self.label}: {step}", error=answer.error_code, producer=seen)

    def init(self, step: str, expected: ProducerIdentity | None = None) -> ProducerIdentity:
        """InitProducerId; the identity."""
        more = {} if expected is None else {"expected": expected}
        answer = self.broker.settled(lambda: init(self.broker.client, self.name, version=VERSION, **more))  # type: ignore[arg-type]
        self.note(step, answer)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def write(self, step: str, producer: ProducerIdentity, value: bytes) -> None:
        """The first batch of a transaction, as a client of TV2 sends it."""
        batch = tx_batch([value], producer, 0)
        ask = lambda: calls.produce(self.broker.client, self.topic, batch, self.name, version=12)  # noqa: E731
        answer = self.broker.settled(ask)
        self.broker.note(f"{self.label}: {step}", error=answer.error_code, offset=answer.base_offset)

    def end(self, step: str, producer: ProducerIdentity, commit: bool = True, version: int = 5) -> ProducerIdentity:
        """EndTxn; the identity that it gives."""
        answer = self.broker.settled(lambda: end(self.broker.client, self.name, producer, commit, version))
        self.note(step, answer)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def settle(self, *states: str) -> None:
        """Wait until the transaction has one of ``states``."""
        look = lambda: calls.describe(self.broker.client, self.name).transaction_state  # noqa: E731
        assert eventually(look, states.__contains__) in states

    def records(self, step: str, count: int) -> None:
        """The committed records, of which there are ``count`` in the end."""
        seen = eventually(lambda: calls.read_all(self.broker.client, self.topic), lambda values: len(values) >= count)
        self.broker.note(f"{self.label}: {step}", records=seen)


def climb(senders: list[EpochSender]) -> None:
    """Lead every sender to its last epoch."""
    for sender in senders:
        first = identity(sender.broker.settled(lambda s=sender: init(s.broker.client, s.name, version=VERSION)))  # type: ignore[misc]
        sender.old = first
    lines = [(sender, sender.broker.connect()) for sender in senders]
    epoch = 0
    while epoch < LAST_EPOCH:
        count = min(_AT_ONCE, LAST_EPOCH - epoch)
        sent = [
            (sender, client, [_ask(client, sender, epoch + n + 1) for n in range(count)]) for sender, client in lines
        ]
        for sender, client, correlations in sent:
            for correlation in correlations:
                answer = client.receive(ApiKey.INIT_PRODUCER_ID, VERSION, correlation)
                assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
            sender.old = identity(answer)
        epoch += count
    assert {sender.old.epoch for sender in senders} == {LAST_EPOCH}


def _ask(client: RawClient, sender: EpochSender, epoch: int) -> int:
    is_short = sender.label == "timed out" and epoch == LAST_EPOCH
    request = InitProducerIdRequest(
        transactional_id=sender.name,
        transaction_timeout_ms=_SHORT_MS if is_short else _LONG_MS,
        producer_id=-1,
        producer_epoch=-1,
    )
    return client.send(request, VERSION)


def run(broker: Restartable) -> dict[str, str]:
    """What each step was answered."""
    with Subject(broker.bootstrap_servers) as subject:
        timed_out, renewed, ended, decided = (
            EpochSender(subject, label) for label in ("timed out", "renewed", "ended", "decided and killed")
        )
        climb([timed_out, renewed, ended, decided])

        timed_out.write("the transaction", timed_out.old, b"aborted")
        timed_out.settle("CompleteAbort")
        for version in (4, 5):
            for commit in (True, False):
                timed_out.end(f"a late end, commit={commit}, v{version}", timed_out.old, commit, version)
        fresh = renewed.init("init as the last epoch", renewed.old)
        ended.write("the transaction", ended.old, b"first")
        following = ended.end("the end", ended.old)
        ended.settle("CompleteCommit")
        decided.write("the transaction", decided.old, b"first")
        promised = decided.end("the end", decided.old)
        restart(broker, subject)

        timed_out.end("a late end after a restart", timed_out.old)
        client = timed_out.init("the next session")
        timed_out.write("its transaction", client, b"second")
        timed_out.end("a late end within it", timed_out.old)
        timed_out.end("its end", client)
        timed_out.records("what is committed", 1)

        renewed.init("init as the last epoch again, after a restart", renewed.old)
        renewed.init("init as the fresh id", fresh)
        renewed.init("init as the last epoch once more", renewed.old)

        ended.end("the end again, after a restart", ended.old)
        ended.end("the opposite end, after a restart", ended.old, commit=False)
        ended.write("the next transaction", following, b"second")
        ended.end("the end once more, within the next transaction", ended.old)
        ended.end("the end of the next transaction", following)
        ended.records("what is committed", 2)

        decided.write("the next transaction, after a restart", promised, b"second")
        decided.end("the end of the next transaction", promised)
        decided.records("what is committed", 2)
        restart(broker, subject)

        for sender, values in ((timed_out, 1), (ended, 2), (decided, 2)):
            sender.records("what is committed, after another restart", values)
        return subject.transcript


def restart(broker: Restartable, subject: Subject) -> None:
    """Kill the broker, start it again, and wait until its coordinator answers."""
    broker.kill()
    broker.start()
    subject.client = subject.connect()
    look: Callable[[], Message] = lambda: init(subject.client, "warm-up", version=VERSION)  # noqa: E731
    assert subject.settled(look).error_code == ErrorCode.NONE
