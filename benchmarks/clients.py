"""The workloads, each run by client processes of its own, so that no client shares an interpreter with another or with
what measures it. All go through librdkafka, but for transactions, which the native producer makes as well.

    python -m benchmarks.clients WORKLOAD '{"bootstrap": "HOST:PORT", "topic": "t", ...}'

See processes.py.
"""

import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Producer, TopicPartition

from benchmarks.processes import Result, TaskInput, serve
from dualwrite.client import TwoPhaseProducer

LIBRDKAFKA, NATIVE = "librdkafka", "native"
"""The producers that transactions are made with."""
AnyProducer = Producer | TwoPhaseProducer

_QUIET = {"log_level": 4}  # warnings
_AT_ONCE = {"linger.ms": 0}
_BATCH = 5000
_BULK = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 256 * 1024,
}
_ABORTED = 10
"""Of the transactions in bulk, one in so many is aborted."""
_WARM_UP = 3
"""Transactions of each producer before the first that is timed."""
_FLUSH_SECONDS = 120.0
_PATIENCE_SECONDS = 30.0


def transactions(
    bootstrap: str,
    topic: str,
    producers: int,
    seconds: float,
    size: int = 200,
    client: str = LIBRDKAFKA,
    records: int = 1,
    first: int = 0,
) -> TaskInput:
    """Transactions of ``records``, one after another on each of ``producers`` threads: how long each took, in ms.

    :param first: the number of the first producer; those of other processes must have others.
    """
    connect = {LIBRDKAFKA: _transactional_producer, NATIVE: _native_producer}[client]
    connected = [connect(bootstrap, f"{topic}-{first + index}") for index in range(producers)]
    value = b"v" * size
    for producer in connected:
        for _ in range(_WARM_UP):
            _transaction(producer, topic, value, records)

    def work() -> Result:
        took: list[list[float]] = [[] for _ in connected]
        deadline = time.monotonic() + seconds

        def loop(producer: AnyProducer, mine: list[float]) -> None:
            while True:  # once at least, also where a thread begins after the deadline
                began = time.monotonic()
                _transaction(producer, topic, value, records)
                ended = time.monotonic()
                mine.append((ended - began) * 1000)
                if ended >= deadline:
                    return

        threads = [threading.Thread(target=loop, args=pair) for pair in zip(connected, took, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"milliseconds": [each for mine in took for each in mine]}

    return work


def produce(bootstrap: str, topic: str, total: int, size: int, idempotent: bool = False) -> TaskInput:
    """``total`` bytes in records of ``size``, all of them acknowledged at the end."""
    failures: list[str] = []
    producer = Producer(
        {
            **_BULK,
            "bootstrap.servers": bootstrap,
            "delivery.report.only.error": True,
            "enable.idempotence": idempotent,
        }
    )

    def report(error: object, _: object) -> None:
        failures.append(str(error))

    produce_one(producer, topic)

    def work() -> Result:
        left = total // size
        while left:
            wanted = min(left, _BATCH)
            messages = [{"value": b"v" * size} for _ in range(wanted)]
            left -= producer.produce_batch(topic, messages, on_delivery=report)
            producer.poll(0.01 if "_error" in messages[-1] else 0)  # the queue is full: let it drain
        if producer.flush(_FLUSH_SECONDS) or failures:
            raise RuntimeError(f"records were not delivered: {failures[:1] or 'no answer in time'}")
        return {"bytes": total // size * size}

    return work


def produce_in_transactions(bootstrap: str, topic: str, total: int, size: int) -> TaskInput:
    """``total`` bytes in records of ``size``, in transactions of many records; some are aborted when all their records
    are written."""
    producer = _transactional_producer(bootstrap, topic, _BULK)
    _transaction(producer, topic, b"0")

    def work() -> Result:
        left, committed, number = total // size, 0, 0
        while left:
            wanted = min(left, _BATCH)
            producer.begin_transaction()
            producer.produce_batch(topic, [{"value": b"v" * size} for _ in range(wanted)])
            if producer.flush(_FLUSH_SECONDS):
                raise RuntimeError("records were not delivered in time")
            number += 1
            if number % _ABORTED == 0:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                committed += wanted
            left -= wanted
        return {"bytes": total // size * size, "committed": committed * size}

    return work


def consume(bootstrap: str, topic: str, total: int, size: int, isolation: str = "read_committed") -> TaskInput:
    """``total`` bytes in records of ``size``, read from the beginning of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "queued.max.messages.kbytes": 128 * 1024,
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 1,  # a full queue is to be the limit, and not a pause of a second after it
        }
    )
    consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_PATIENCE_SECONDS)

    def work() -> Result:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        wanted, seen = total // size, 0
        while seen < wanted:
            messages = consumer.consume(min(wanted - seen, 10_000), timeout=_PATIENCE_SECONDS)
            if not messages:
                raise RuntimeError(f"{seen} of {wanted} records came")
            seen += len(messages)
        return {"bytes": seen * size}

    return work


def end_to_end(bootstrap: str, topic: str, seconds: float, rate: float, transactional: bool) -> TaskInput:
    """Records at a steady rate, each produced by one thread and consumed by another: how long each was under way."""
    if transactional:
        producer = _transactional_producer(bootstrap, topic)
        _transaction(producer, topic, b"0")
    else:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
        produce_one(producer, topic)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    while True:  # the position is at the end once something of ours comes back
        _send(producer, topic, transactional, b"0")
        if consumer.poll(0.2) is not None:
            break
    while consumer.poll(0.3) is not None:
        pass

    def work() -> Result:
        count = int(seconds * rate)

        def send() -> None:
            began = time.monotonic()
            for index in range(count):
                time.sleep(max(0.0, began + index / rate - time.monotonic()))
                _send(producer, topic, transactional, str(time.monotonic_ns()).encode())

        sender = threading.Thread(target=send)
        sender.start()
        took = []
        while len(took) < count:
            message = consumer.poll(_PATIENCE_SECONDS)
            if message is None or message.error():
                raise RuntimeError(f"{len(took)} of {count} records came")
            took.append((time.monotonic_ns() - int(message.value() or b"0")) / 1e6)
        sender.join()
        producer.flush(_PATIENCE_SECONDS)
        return {"milliseconds": took}

    return work


def _transactional_producer(bootstrap: str, transactional_id: str, more: Mapping[str, object] = _AT_ONCE) -> Producer:
    producer = Producer({**_QUIET, **more, "bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(_PATIENCE_SECONDS)
    return producer


def _native_producer(bootstrap: str, transactional_id: str) -> TwoPhaseProducer:
    """Not in two-phase commit, which Apache Kafka 4.4 does not have: a transaction's requests are the same."""
    producer = TwoPhaseProducer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.two.phase.commit.enable": False,
        }
    )
    producer.init_transactions()
    return producer


def _transaction(producer: AnyProducer, topic: str, value: bytes, records: int = 1) -> None:
    producer.begin_transaction()
    for _ in range(records):
        producer.produce(topic, value, partition=0)
    producer.commit_transaction()


def produce_one(producer: Producer, topic: str) -> None:
    """One record, acknowledged.

    :raises RuntimeError: if it is not.
    """
    producer.produce(topic, b"0", partition=0)
    if producer.flush(_PATIENCE_SECONDS):
        raise RuntimeError("the first record was not acknowledged")


def _send(producer: Producer, topic: str, transactional: bool, value: bytes) -> None:
    if transactional:
        _transaction(producer, topic, value)
    else:
        producer.produce(topic, value, partition=0)
        producer.poll(0)


WORKLOADS: Mapping[str, Callable[..., TaskInput]] = {
    "transactions": transactions,
    "produce": produce,
    "produce_in_transactions": produce_in_transactions,
    "consume": consume,
    "end_to_end": end_to_end,
}


if __name__ == "__main__":
    serve(WORKLOADS)
