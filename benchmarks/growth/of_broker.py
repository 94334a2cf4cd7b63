"""The broker against the number of partitions, of connections, of segments, and of open transactions."""

import resource
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.contenders import Bundled, create_topic, resident_mib
from benchmarks.figures import Sample
from benchmarks.processes import process_clock
from dualwrite.client import TwoPhaseProducer
from dualwrite.client.admin.control_plane import ControlPlane

RECORDS = 300
"""Of which one was sent at a time, for the latency and the broker's processor time of one."""
_AT_A_TIME = 30
_TIMES = 15
"""That a request about everything is made."""
_WAIT_SECONDS = 120.0
_SEGMENT_BYTES = 1 << 20
_KIB = b"x" * 1024
_QUIET = {"log_level": 2}
"""Clients see their broker killed, and say so."""
_API_VERSIONS = bytes.fromhex("00120000 00000001 00026377")
_METADATA = bytes.fromhex("00030001 00000001 00026377 ffffffff")
"""Requests in the plainest version, of all topics where that is a choice: librdkafka would take time of its own."""


@dataclass(frozen=True)
class GrowthSite:
    """Where all of it is measured.

    :param directory: of the data.
    """

    directory: Path

    def broker(self, name: str) -> Bundled:
        """A broker on an empty directory, not started."""
        return Bundled(self.directory / name, "os")


def partitions(site: GrowthSite, size: int) -> Sample:
    """A topic of so many partitions."""
    broker = site.broker(f"partitions-{size}")
    broker.start()
    topic = "many"
    sample = {"create, s": _seconds(lambda: create_topic(broker.bootstrap, topic, size))}
    create_topic(broker.bootstrap, "small", 1)  # librdkafka itself looks at all partitions of a topic for each record
    sample = _with_restart(broker, sample | _single_records(broker, "small"), goes_on=True)
    clock = process_clock(broker.pid)
    with _connected(broker) as connection:
        before = time.clock_gettime(clock)
        sample["metadata of all, ms"] = _median_ms(lambda: _ask(connection, _METADATA))
        sample["metadata of all, ms of the broker"] = (time.clock_gettime(clock) - before) / _TIMES * 1e3
    broker.kill()
    return sample


def topics(site: GrowthSite, size: int) -> Sample:
    """So many topics of one partition, each created by a request of its own; and then all deleted but one."""
    broker = site.broker(f"topics-{size}")
    broker.start()
    admin = AdminClient({**_QUIET, "bootstrap.servers": broker.bootstrap})
    clock = process_clock(broker.pid)
    names = [f"topic-{number}" for number in range(size)]
    sample: Sample = {}
    for verb, act in (
        ("create", lambda name: admin.create_topics([NewTopic(name, 1, 1)])),
        ("delete", lambda name: admin.delete_topics([name])),
    ):
        before = time.clock_gettime(clock)
        for name in names[verb == "delete" :]:
            act(name)[name].result(_WAIT_SECONDS)
        sample[f"{verb} one, µs of the broker"] = (time.clock_gettime(clock) - before) / size * 1e6
    return _with_restart(broker, sample)


def connections(site: GrowthSite, size: int) -> Sample:
    """So many connections that do nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    broker = site.broker(f"connections-{size}")
    broker.start()
    create_topic(broker.bootstrap, "records", 1)
    clock = process_clock(broker.pid)
    with ExitStack() as opened:
        idle_mib, before = resident_mib(broker), time.clock_gettime(clock)
        for _ in range(size):
            _ask(opened.enter_context(_connected(broker)), _API_VERSIONS)
        used = time.clock_gettime(clock) - before
        sample = {"one connection, µs of the broker": used / size * 1e6, "all, MiB": resident_mib(broker) - idle_mib}
        sample |= _single_records(broker, "records")
    broker.kill()
    return sample


def segments(site: GrowthSite, size: int) -> Sample:
    """A log of so many segments: 100 of them stand for 100 GB in segments of 1 GB, but not for the bytes."""
    broker = site.broker(f"segments-{size}")
    broker.start()
    admin = AdminClient({**_QUIET, "bootstrap.servers": broker.bootstrap})
    config = {"segment.bytes": str(_SEGMENT_BYTES), "index.interval.bytes": "4096"}
    admin.create_topics([NewTopic("long", 1, 1, config=config)])["long"].result(_WAIT_SECONDS)
    producer = Producer({**_QUIET, "bootstrap.servers": broker.bootstrap, "linger.ms": 5, "batch.size": 64 * 1024})
    clock = process_clock(broker.pid)
    before, count = time.clock_gettime(clock), size * (_SEGMENT_BYTES // 1100)
    for _ in range(count):
        while True:
            try:
                producer.produce("long", _KIB)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(_WAIT_SECONDS) == 0
    sample = {"append 1 MiB, ms of the broker": (time.clock_gettime(clock) - before) / size * 1e3}
    consumer = Consumer({**_QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "growth"})
    stamp = int(time.time() * 1000) - 1
    by_time = TopicPartition("long", 0, stamp)
    sample["offset of a time, ms"] = _median_ms(lambda: consumer.offsets_for_times([by_time], timeout=_WAIT_SECONDS))
    consumer.close()
    return _with_restart(broker, sample | _single_records(broker, "long"))


def open_transactions(site: GrowthSite, size: int) -> Sample:
    """So many prepared transactions in one partition, which end in the order in which they began."""
    broker = site.broker(f"open-{size}")
    broker.start()
    create_topic(broker.bootstrap, "records", 1)
    config = {"bootstrap.servers": broker.bootstrap}
    clock = process_clock(broker.pid)
    states = []
    before = time.clock_gettime(clock)
    for number in range(size):
        producer = TwoPhaseProducer({**config, "transactional.id": f"open-{number}"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("records", b"v", partition=0)
        states.append((f"open-{number}", producer.prepare_transaction().producer))
        producer.close()  # which ends no transaction
    sample = {"begin one, µs of the broker": (time.clock_gettime(clock) - before) / size * 1e6}
    control = ControlPlane(config)
    sample["list all, ms"] = _median_ms(control.list_transactions)
    sample |= _single_records(broker, "records")
    sample = _with_restart(broker, sample, goes_on=True)
    control = ControlPlane({"bootstrap.servers": broker.bootstrap})
    clock = process_clock(broker.pid)
    before = time.clock_gettime(clock)
    for transactional_id, identity in states:
        control.end_txn(transactional_id, identity, committed=True, bumps_epoch=True)
    sample["end one, µs of the broker"] = (time.clock_gettime(clock) - before) / size * 1e6
    control.close()
    broker.kill()
    return sample


def _single_records(broker: Bundled, topic: str) -> Sample:
    """Records that are sent one after another."""
    producer = Producer({**_QUIET, "bootstrap.servers": broker.bootstrap, "linger.ms": 0, "enable.idempotence": True})

    def one() -> None:
        producer.produce(topic, b"v", partition=0)
        assert producer.flush(_WAIT_SECONDS) == 0

    one()
    clock = process_clock(broker.pid)
    took, used = [], []
    for _ in range(RECORDS // _AT_A_TIME):
        before = time.clock_gettime(clock)
        took += [_seconds(one) for _ in range(_AT_A_TIME)]
        used.append((time.clock_gettime(clock) - before) / _AT_A_TIME)
    # The cheapest: other work on the machine only adds to it.
    return {"one record, ms (p50)": statistics.median(took) * 1e3, "one record, µs of the broker": min(used) * 1e6}


def _connected(broker: Bundled) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)))


def _ask(connection: socket.socket, request: bytes) -> None:
    """Send ``request``, and read its answer to the end."""
    connection.sendall(len(request).to_bytes(4, "big") + request)
    answer = connection.makefile("rb", buffering=0)
    left = int.from_bytes(answer.read(4) or b"", "big")
    while left:
        left -= len(answer.read(left) or b"")


def _with_restart(broker: Bundled, sample: Sample, *, goes_on: bool = False) -> Sample:
    """The memory, and a start after SIGKILL."""
    sample["memory, MiB"] = resident_mib(broker)
    broker.kill()
    sample["start after kill -9, s"] = _seconds(broker.start)
    sample["start, processor s"] = time.clock_gettime(process_clock(broker.pid))
    if not goes_on:
        broker.kill()
    return sample


def _seconds(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _median_ms(act: Callable[[], object]) -> float:
    return statistics.median(_seconds(act) for _ in range(_TIMES)) * 1e3
