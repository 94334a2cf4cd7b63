"""The metrics are Prometheus', say what the broker's state is now, and are all of those that the reference lists."""

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from prometheus_client.parser import text_string_to_metric_families

from dualwrite.broker.metrics import METRICS, PREFIX
from dualwrite.broker.runtime.meters import Histogram
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import (
    batch,
    end,
    metadata,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    unique,
)
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import add_users, handshake, log_in
from tests.support.waiting import PATIENCE_SECONDS, eventually

Values = dict[tuple[str, ...], float]


@dataclass
class Measured:
    """A broker that answers Prometheus."""

    process: "subprocess.Popen[bytes]"
    address: str
    sasl_address: str
    log: Path

    @property
    def url(self) -> str:
        text = eventually(self.log.read_text, lambda text: "metrics at " in text)
        return text.partition("metrics at ")[2].split()[0]

    def scrape(self) -> dict[str, Values]:
        """name -> {values of the labels, which come in alphabetical order: value}, without the prefix."""
        with urllib.request.urlopen(self.url, timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode()
        found: dict[str, Values] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name.removeprefix(PREFIX), {})[tuple(sample.labels.values())] = sample.value
        return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    scratch = tmp_path_factory.mktemp("measured")
    ready, log = scratch / "ready", scratch / "log"
    listeners = "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    command = [sys.executable, "-m", "dualwrite", "broker", "--config", listeners, "--metrics", "127.0.0.1:0"]
    add_users(scratch / "data")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--data-dir", str(scratch / "data"), "--ready-file", str(ready)], stderr=stderr
        )
    eventually(ready.exists, bool)
    first, _, sasl = ready.read_text().splitlines()
    yield Measured(process, first, sasl.split()[1], log)
    process.terminate()
    assert process.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture
def client(measured: Measured) -> Iterator[RawClient]:
    with RawClient(measured.address) as connected:
        yield connected


def test_every_metric_is_reported_under_its_name(measured: Measured) -> None:
    told = measured.scrape()
    for metric in METRICS:
        name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
        has_values = name not in (
            "authentications_total",
            "requests_total",
            "request_errors_total",
            "last_stable_offset_lag",
        )
        assert name in told or not has_values


def test_open_transactions_are_reported(measured: Measured, client: RawClient) -> None:
    topic, plain, two_phase = new_topic(client), unique("tx"), unique("tx")
    before = measured.scrape()
    first, second = new_producer(client, plain), new_producer(client, two_phase, two_phase=True)
    open_transaction(client, plain, first, {(topic, 0): [b"a"]})
    open_transaction(client, two_phase, second, {(topic, 0): [b"a", b"b"]})

    during = measured.scrape()

    assert during["last_stable_offset_lag"]["0", topic] == 3
    assert during["transactions"][("Ongoing",)] == before["transactions"][("Ongoing",)] + 2
    assert during["in_doubt_transactions"][()] == before["in_doubt_transactions"][()] + 1
    assert during["transactional_ids"][()] == before["transactional_ids"][()] + 2
    assert during["producer_ids"][()] == before["producer_ids"][()] + 2
    assert during["partitions"][()] >= 1
    assert eventually(lambda: measured.scrape()["active_transaction_open_time_max_ms"][()], lambda open_ms: open_ms > 0)

    end(client, plain, first)
    end(client, two_phase, second, commit=False)
    after = measured.scrape()
    assert after["last_stable_offset_lag"]["0", topic] == 0
    assert after["transactions"][("CompleteAbort",)] == before["transactions"][("CompleteAbort",)] + 1
    assert after["in_doubt_transactions"] == before["in_doubt_transactions"]
    assert after["active_transaction_open_time_max_ms"] == before["active_transaction_open_time_max_ms"] == {(): 0}


@pytest.mark.slow
def test_groups_and_their_members_are_reported(measured: Measured, client: RawClient) -> None:
    topic, before = new_topic(client), measured.scrape()
    produce(client, topic, batch([b"v"]))
    config = {
        "bootstrap.servers": measured.address,
        "group.id": unique("group"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    assert consumer.poll(PATIENCE_SECONDS) is not None
    during = measured.scrape()
    assert during["groups"][("Stable",)] == before["groups"][("Stable",)] + 1
    assert during["group_members"][()] == before["group_members"][()] + 1
    consumer.close()
    members = eventually(lambda: measured.scrape()["group_members"], lambda seen: seen == before["group_members"])
    assert members == before["group_members"]


def test_requests_errors_and_bytes_are_counted(measured: Measured, client: RawClient) -> None:
    topic = new_topic(client)
    metadata(client, topic)  # so that every counter below is there
    produce(client, "missing", batch([b"v"]))
    before = measured.scrape()
    for _ in range(3):
        produce(client, "missing", batch([b"v"]))
    produce(client, topic, batch([b"x" * 1000]))
    after = measured.scrape()
    error = ("PRODUCE", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name)
    assert after["requests_total"][("PRODUCE",)] == before["requests_total"][("PRODUCE",)] + 4
    assert after["requests_total"][("METADATA",)] == before["requests_total"][("METADATA",)]
    assert after["request_errors_total"][error] == before["request_errors_total"][error] + 3
    assert 1000 < after["bytes_received_total"][()] - before["bytes_received_total"][()] < 2000
    assert after["bytes_sent_total"][()] > before["bytes_sent_total"][()]


def test_connections_are_counted_while_they_are_open(measured: Measured, client: RawClient) -> None:
    metadata(client)
    before = measured.scrape()["connections"][()]
    with RawClient(measured.address) as other:
        metadata(other)
        assert measured.scrape()["connections"][()] == before + 1
    assert eventually(lambda: measured.scrape()["connections"][()], lambda count: count == before) == before


def test_rounds_of_fsyncs_are_counted(measured: Measured, client: RawClient) -> None:
    topic = new_topic(client)
    before = measured.scrape()
    produce(client, topic, batch([b"v"]))
    after = measured.scrape()
    assert after["fsync_round_seconds_count"][()] >= before["fsync_round_seconds_count"][()] + 1
    assert after["fsync_round_seconds_sum"][()] > before["fsync_round_seconds_sum"][()]
    assert after["fsync_round_seconds_bucket"][("+Inf",)] == after["fsync_round_seconds_count"][()]


@pytest.mark.parametrize("path", ["/", "/metrics/", "/favicon.ico"])
def test_other_paths_are_not_found(measured: Measured, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(measured.url.removesuffix("/metrics") + path, timeout=PATIENCE_SECONDS)
    with refused.value as answer:
        assert (answer.code, answer.read()) == (404, b"the metrics are at /metrics\n")


def test_idle_connections_do_not_pile_up(measured: Measured) -> None:
    threads = Path(f"/proc/{measured.process.pid}/task")
    if not threads.exists():
        pytest.skip("this system does not tell how many threads a process has")
    measured.scrape()
    before = len(list(threads.iterdir()))
    host, _, port = measured.url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    idle = [socket.create_connection((host, int(port)), PATIENCE_SECONDS) for _ in range(40)]
    for refused in idle[-10:]:
        assert refused.recv(1) == b""
    assert len(list(threads.iterdir())) <= before + 16
    for connection in idle:
        connection.close()
    assert eventually(lambda: len(list(threads.iterdir())), lambda count: count <= before) <= before
    assert measured.scrape()


def test_a_metrics_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "dualwrite", "broker", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
        run = subprocess.run([*command, "--metrics", address], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert run.returncode != 0
    (line,) = run.stderr.splitlines()
    assert f"cannot serve metrics on {address}" in line


def test_a_histogram_counts_a_value_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram(bounds=(1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 12.0)


def test_authentications_are_counted_by_mechanism_and_result(measured: Measured) -> None:
    for password in ({}, {"password": "wrong"}, {"password": "wrong"}):
        with RawClient(measured.sasl_address) as client:
            log_in(client, "SCRAM-SHA-512", **password)
    with RawClient(measured.sasl_address) as client:
        handshake(client, "whatever a client may say")
    assert measured.scrape()["authentications_total"] == {
        ("SCRAM-SHA-512", "success"): 1,
        ("SCRAM-SHA-512", "failure"): 2,
        ("unsupported", "failure"): 1,
    }
