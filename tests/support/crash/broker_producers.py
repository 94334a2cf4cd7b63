"""Producers that go on through the death of their broker, each in a thread of its own, and write down what they were
told. The raw ones retry exactly as KIP-98 asks: the same bytes under the same identity and sequence."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.error_codes import ErrorCode
from tests.support.crash.broker_history import Fate, History, Place, Unit
from tests.support.requests.calls import add, batch, end, identity, init, ongoing, produce, producers, tx_batch
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

PARTITIONS = 3

ResultT = TypeVar("ResultT")


class Stubborn:
    """A connection that is made again for as long as a call fails for want of one."""

    def __init__(self, servers: str) -> None:
        self.cut_off = 0
        """How many requests met a broker that died before it answered."""
        self._servers = servers
        self._client: RawClient | None = None

    def __call__(self, call: Callable[[RawClient], ResultT]) -> ResultT:
        """What ``call`` returns; it may be made several times."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if self._client is None:
                    self._client = RawClient(self._servers)
                return call(self._client)
            except ConnectionError:
                assert time.monotonic() < deadline, "the broker does not come back"
                self.cut_off += self._client is not None
                self.close()
                time.sleep(0.005)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Worker(threading.Thread):
    """Writes units until it is told to stop, and finishes the one that it is at."""

    def __init__(self, name: str, servers: str, topic: str, history: History, seed: int) -> None:
        super().__init__(name=name)
        self.topic = topic
        self.history = history
        self.servers = servers
        self.chance = random.Random(f"{seed} {name}")
        self.ask = Stubborn(servers)
        self.error: BaseException | None = None
        self._count = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  stop() raises it where the test sees it
            self.error = error
        finally:
            self.ask.close()

    def work(self) -> None:
        """Write until :meth:`goes_on` is False."""
        raise NotImplementedError

    def goes_on(self) -> bool:
        return not self._stopping.is_set()

    def stop(self, patience: float = 2 * PATIENCE_SECONDS) -> None:
        """End, and raise what went wrong; fail if it takes longer than ``patience`` seconds."""
        self._stopping.set()
        self.join(patience)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise AssertionError(f"{self.name}: {self.error!r}") from self.error

    def next_unit(self, partitions: Sequence[Place]) -> Unit:
        """A unit of one to three records for each of ``partitions``."""
        self._count += 1
        writes = {
            partition: [b"%s %d %d" % (self.name.encode(), self._count, n) for n in range(self.chance.randint(1, 3))]
            for partition in partitions
        }
        return self.history.begins(self.name, writes)

    def some_partitions(self) -> list[int]:
        return self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS))

    def writes_batch(
        self, unit: Unit, partition: int, records: bytes, transactional_id: str | None = None, version: int = 9
    ) -> int:
        """Produce ``records``, the unit's batch for ``partition``; its offset."""
        answer = self.ask(
            lambda client: produce(client, self.topic, records, transactional_id, partition=partition, version=version)
        )
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self.history.acknowledged(unit, partition, unit.writes[partition], answer.base_offset)
        return int(answer.base_offset)


class RawIdempotent(Worker):
    """An idempotent producer without transactions."""

    def work(self) -> None:
        producer = identity(self.ask(lambda client: init(client, None)))
        sequences = dict.fromkeys(range(PARTITIONS), 0)
        while self.goes_on():
            (partition,) = partitions = [self.chance.randrange(PARTITIONS)]
            unit = self.next_unit(partitions)
            values = unit.writes[partition]
            self.writes_batch(unit, partition, batch(values, producer, sequences[partition]))
            self.history.ended(unit, Fate.COMMITTED)
            sequences[partition] += len(values)


class RawTransactions(Worker):
    """A transactional producer of the newer protocol (TV2): its epoch moves with every transaction."""

    def work(self) -> None:
        producer = identity(self.ask(lambda client: init(client, self.name)))
        while self.goes_on():
            unit = self.next_unit(self.some_partitions())
            self.writes_all(unit, producer)
            commit = self.chance.random() < 0.7
            producer = self.ends(unit, producer, commit)

    def writes_all(self, unit: Unit, producer: ProducerIdentity) -> dict[int, int]:
        """Write the unit; the first offset in each partition."""
        return {
            partition: self.writes_batch(unit, partition, tx_batch(values, producer), self.name, version=12)
            for partition, values in unit.writes.items()
        }

    def ends(self, unit: Unit, producer: ProducerIdentity, commit: bool) -> ProducerIdentity:
        """Commit or abort; the identity for the next transaction."""
        following = identity(self.ask(lambda client: end(client, self.name, producer, commit)))
        self.history.ended(unit, Fate.COMMITTED if commit else Fate.ABORTED)
        return following


class RawOlderTransactions(Worker):
    """A transactional producer of the older protocol (TV1): one epoch, and sequences that go on."""

    def work(self) -> None:
        producer = identity(self.ask(lambda client: init(client, self.name, version=4)))
        sequences = dict.fromkeys(range(PARTITIONS), 0)
        while self.goes_on():
            unit = self.next_unit(self.some_partitions())
            joining = [(self.topic, partition) for partition in unit.writes]
            added = self.ask(lambda client: add(client, self.name, producer, *joining))  # noqa: B023  called at once
            assert set(added.values()) == {ErrorCode.NONE}
            for partition, values in unit.writes.items():
                content = tx_batch(values, producer, sequences[partition])
                self.writes_batch(unit, partition, content, self.name)
                sequences[partition] += len(values)
            commit = self.chance.random() < 0.7
            ended = self.ask(lambda client: end(client, self.name, producer, commit, 1))  # noqa: B023
            assert ended.error_code == ErrorCode.NONE, ErrorCode(ended.error_code)
            self.history.ended(unit, Fate.COMMITTED if commit else Fate.ABORTED)


class Recovering(RawTransactions):
    """Prepares two-phase transactions, forgets all but the identity, and ends them in a new incarnation (KIP-939).

    The last one stays prepared: ``prepared`` is its identity, ``starts`` its first offset in each partition.
    """

    def work(self) -> None:
        producer = identity(self.incarnates())
        while True:
            unit = self.next_unit(self.some_partitions())
            self.prepared, self.starts = producer, self.writes_all(unit, producer)
            if not self.goes_on():
                return
            producer = self.recovers(unit, self.chance.random() < 0.7)

    def incarnates(self) -> object:
        return self.ask(lambda client: init(client, self.name, two_phase=True, keep=True))

    def recovers(self, unit: Unit, commit: bool) -> ProducerIdentity:
        """Find the prepared transaction where it was left, and end it; the identity for the next."""
        answer = self.incarnates()
        assert ongoing(answer) == self.prepared
        for partition, start in self.starts.items():
            state = self.ask(lambda client: producers(client, self.topic, partition))  # noqa: B023
            assert state[self.prepared.producer_id].current_txn_start_offset == start
        return self.ends(unit, identity(answer), commit)


class Librdkafka(Worker):
    """confluent-kafka without transactions: idempotent, five requests in flight."""

    def work(self) -> None:
        producer = Producer({**_settings(self.servers), "enable.idempotence": True, "linger.ms": 1})
        while self.goes_on():
            partition = self.chance.randrange(PARTITIONS)
            unit = self.next_unit([partition])
            for value in unit.writes[partition]:
                producer.produce(
                    self.topic, value, partition=partition, on_delivery=self.reporting(unit, Fate.COMMITTED)
                )
            producer.poll(0.001)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def reporting(self, unit: Unit, fate: Fate) -> Callable[[KafkaError | None, Message], None]:
        """A delivery report for one record of ``unit``; once all are there, the unit has ``fate``."""

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                return
            self.history.acknowledged(unit, message.partition(), [message.value()], message.offset())
            if len(unit.offsets) == len(list(unit.values())):
                self.history.ended(unit, fate)

        return report


class LibrdkafkaTransactions(Librdkafka):
    """confluent-kafka with transactions, as its documentation says that errors are to be handled."""

    def work(self) -> None:
        producer = self.begins_session()
        while self.goes_on():
            unit = self.next_unit(self.some_partitions())
            commit = self.chance.random() < 0.7
            producer.begin_transaction()
            for partition, value in unit.values():
                producer.produce(self.topic, value, partition=partition, on_delivery=self.reporting(unit, Fate.OPEN))
            if not self.ended_as_wanted(producer, unit, commit):
                producer = self.begins_session()  # which aborts what is still open

    def begins_session(self) -> Producer:
        producer = Producer({**_settings(self.servers), "transactional.id": self.name})
        self.until_it_works(producer.init_transactions)
        return producer

    def ended_as_wanted(self, producer: Producer, unit: Unit, commit: bool) -> bool:
        """True if the transaction has ended and the producer may go on."""
        try:
            if commit:
                self.until_it_works(producer.commit_transaction)
            else:
                self.until_it_works(producer.abort_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                self.history.ended(unit, Fate.UNKNOWN)
                return False
            self.until_it_works(producer.abort_transaction)
            commit = False
        self.history.ended(unit, Fate.COMMITTED if commit else Fate.ABORTED)
        return True

    @staticmethod
    def until_it_works(call: Callable[[float], None]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return call(PATIENCE_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


def _settings(servers: str) -> dict[str, object]:
    return {
        "bootstrap.servers": servers,
        "message.timeout.ms": 40_000,
        "reconnect.backoff.ms": 5,
        "reconnect.backoff.max.ms": 50,
        "retry.backoff.ms": 10,
        "log_level": 0,  # it reports every connection that a kill has cost
    }
