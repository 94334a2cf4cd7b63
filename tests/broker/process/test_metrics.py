"""The metrics are Prometheus', say what the broker's state is now, and are all of those that the reference lists."""

import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer

from dualwrite.broker.facts.transactions import TransactionStatus
from dualwrite.broker.metrics.catalogue import METRICS
from dualwrite.broker.metrics.transactions import blocking_transaction_open_time_max_ms, hanging_transactions
from dualwrite.broker.runtime.meters import Histogram
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.certificates import Authority
from tests.support.monitoring.measured import MeasuredBroker, measured_broker
from tests.support.requests.calls import (
    batch,
    end,
    fetch,
    metadata,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    unique,
)
from tests.support.requests.offset_calls import commit
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import add_users, handshake, log_in, send_token, unsecured_token
from tests.support.waiting import PATIENCE_SECONDS, eventually


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    scratch = tmp_path_factory.mktemp("measured")
    add_users(scratch / "data")
    with measured_broker(scratch) as broker:
        yield broker


@pytest.fixture
def client(measured: MeasuredBroker) -> Iterator[RawClient]:
    with RawClient(measured.address) as connected:
        yield connected


def test_every_metric_is_reported_under_its_name(measured: MeasuredBroker) -> None:
    told = measured.scrape()
    for metric in METRICS:
        name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
        assert name in told or metric.labels, "only a metric with labels may have no value yet"


def test_open_transactions_are_reported(measured: MeasuredBroker, client: RawClient) -> None:
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
def test_groups_and_their_members_are_reported(measured: MeasuredBroker, client: RawClient) -> None:
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


def test_requests_errors_and_bytes_are_counted(measured: MeasuredBroker, client: RawClient) -> None:
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


def test_connections_are_counted_while_they_are_open(measured: MeasuredBroker, client: RawClient) -> None:
    anonymous, none, user = ("PLAINTEXT", "anonymous"), ("SASL_PLAINTEXT", "none"), ("SASL_PLAINTEXT", "user")
    metadata(client)
    before = eventually(
        lambda: measured.scrape()["connections"],
        lambda seen: {labels for labels, count in seen.items() if count} == {anonymous},
    )
    names, kinds = ("PLAINTEXT", "SASL_PLAINTEXT"), ("anonymous", "none", "user")
    assert set(before) == {(name, kind) for name in names for kind in kinds}, "a series does not end with 0"
    with RawClient(measured.address) as other, RawClient(measured.secure_address) as secret:
        metadata(other)
        assert handshake(secret, "SCRAM-SHA-256").error_code == ErrorCode.NONE
        assert measured.scrape()["connections"] == {**before, anonymous: before[anonymous] + 1, none: 1}
    with RawClient(measured.secure_address) as secret:
        log_in(secret)
        assert eventually(lambda: measured.scrape()["connections"], lambda seen: not seen[none])[user] == 1
    assert eventually(lambda: measured.scrape()["connections"], lambda seen: seen == before) == before


def test_a_start_is_a_time(measured: MeasuredBroker) -> None:
    assert abs(measured.scrape()["start_time_seconds"][()] - time.time()) < 3600


def test_rounds_of_fsyncs_are_counted(measured: MeasuredBroker, client: RawClient) -> None:
    topic = new_topic(client)
    before = measured.scrape()
    produce(client, topic, batch([b"v"]))
    after = measured.scrape()
    assert after["fsync_round_seconds_count"][()] >= before["fsync_round_seconds_count"][()] + 1
    assert after["fsync_round_seconds_sum"][()] > before["fsync_round_seconds_sum"][()]
    assert after["fsync_round_seconds_bucket"][("+Inf",)] == after["fsync_round_seconds_count"][()]


@pytest.mark.parametrize("path", ["/", "/metrics/", "/favicon.ico"])
def test_other_paths_are_not_found(measured: MeasuredBroker, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(measured.url.removesuffix("/metrics") + path, timeout=PATIENCE_SECONDS)
    with refused.value as answer:
        assert (answer.code, answer.read()) == (404, b"the metrics are at /metrics\n")


def test_idle_connections_do_not_pile_up(measured: MeasuredBroker) -> None:
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


@pytest.mark.slow
def test_a_metrics_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "dualwrite", "broker", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
        run = subprocess.run([*command, "--metrics", address], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert run.returncode != 0
    (line,) = run.stderr.splitlines()
    assert f"cannot serve metrics on {address}: Address already in use; stop the program that has this port" in line
    assert line.endswith("or choose another one with --metrics (0: a free one)")


def test_a_histogram_counts_a_value_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram(bounds=(1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 12.0)


def test_authentications_are_counted_by_mechanism_and_result(measured: MeasuredBroker) -> None:
    for password in ({}, {"password": "wrong"}, {"password": "wrong"}):
        with RawClient(measured.secure_address) as client:
            log_in(client, "SCRAM-SHA-512", **password)
    with RawClient(measured.secure_address) as client:
        handshake(client, "whatever a client may say")
    with RawClient(measured.secure_address) as client:
        handshake(client, "SCRAM-SHA-512")
        send_token(client, b"no SCRAM message")
    after = measured.scrape()
    expected = {("SCRAM-SHA-512", "success"): 1, ("SCRAM-SHA-512", "failure"): 3, ("unsupported", "failure"): 1}
    assert {key: value for key, value in after["authentications_total"].items() if key in expected} == expected
    assert after["failed_authentications_total"] == {
        ("SCRAM-SHA-512", "credentials"): 2,
        ("SCRAM-SHA-512", "malformed"): 1,
        ("unsupported", "mechanism"): 1,
    }


def test_each_part_of_a_request_has_a_time(measured: MeasuredBroker, client: RawClient) -> None:
    topic = new_topic(client)
    produce(client, topic, batch([b"v"]))
    before = measured.scrape()
    for _ in range(3):
        produce(client, topic, batch([b"v"]))
    fetch(client, topic, 4, max_wait_ms=1, min_bytes=1)  # past the end: it waits, though not for the disk
    after = measured.scrape()

    def counted(api: str, part: str) -> float:
        found, then = (values["request_seconds_count"].get((api, part), 0) for values in (after, before))
        return found - then

    assert [counted("PRODUCE", part) for part in ("queue", "local", "fsync", "wait", "response")] == [3, 3, 3, 0, 3]
    assert [counted("FETCH", part) for part in ("queue", "local", "wait", "response")] == [1, 1, 1, 1]
    assert after["request_seconds_sum"]["PRODUCE", "fsync"] > before["request_seconds_sum"]["PRODUCE", "fsync"]
    buckets = {key: value for key, value in after["request_seconds_bucket"].items() if key[0] == "PRODUCE"}
    assert buckets["PRODUCE", "+Inf", "local"] == after["requests_total"][("PRODUCE",)]


def test_the_lag_of_a_group_is_what_it_has_not_committed(measured: MeasuredBroker, client: RawClient) -> None:
    topic, group = new_topic(client, partitions=2), unique("group")
    produce(client, topic, batch([b"1", b"2", b"3"]))
    assert commit(client, group, {(topic, 0): 1, (topic, 1): 0}) == [ErrorCode.NONE, ErrorCode.NONE]
    lags = measured.scrape()["group_lag"]
    assert {key: lag for key, lag in lags.items() if key[0] == group} == {
        (group, "0", topic): 2,
        (group, "1", topic): 0,
    }
    assert measured.scrape()["group_lags_left_out"] == {(): 0}


def test_bytes_on_disk_are_those_of_the_topics_segments(measured: MeasuredBroker, client: RawClient) -> None:
    topic = new_topic(client, partitions=2)
    assert measured.scrape()["topic_bytes"][(topic,)] == 0
    for partition in range(2):
        produce(client, topic, batch([b"x" * 5000]), partition=partition)
    after = measured.scrape()
    data = measured.log.parent / "data"
    segments = [path for index in range(2) for path in (data / f"{topic}-{index}").glob("*.log")]
    assert after["topic_bytes"][(topic,)] == sum(path.stat().st_size for path in segments) > 10_000
    assert 0 < after["volume_free_bytes"][()] <= after["volume_bytes"][()]


def test_the_oldest_transaction_that_hides_records_has_an_age(measured: MeasuredBroker, client: RawClient) -> None:
    topic, name = new_topic(client), unique("tx")
    assert measured.scrape()["blocking_transaction_open_time_max_ms"] == {(): 0}
    producer = new_producer(client, name, two_phase=True)
    open_transaction(client, name, producer, {(topic, 0): [b"a"]})
    ages = eventually(lambda: measured.scrape()["blocking_transaction_open_time_max_ms"], lambda seen: seen[()] > 0)
    assert ages[()] > 0
    assert measured.scrape()["hanging_transactions"] == {(): 0}
    end(client, name, producer)
    assert measured.scrape()["blocking_transaction_open_time_max_ms"] == {(): 0}


def test_failed_handshakes_are_counted_by_listener(tmp_path: Path) -> None:
    keys = Authority()
    store = keys.issue().in_one(tmp_path / "broker.pem")
    with measured_broker(tmp_path, f"ssl.keystore.location={store}", secure="SSL") as broker:
        trust = ssl.create_default_context(cafile=keys.file(tmp_path / "ca.pem"))
        with RawClient(broker.secure_address, tls=trust) as client:
            metadata(client)
            assert broker.scrape()["connections"]["SSL", "anonymous"] == 1
            assert "tls_handshake_failures_total" not in broker.scrape()
        host, _, port = broker.secure_address.rpartition(":")
        for count in (1, 2):
            with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as plain:
                plain.sendall(b"no TLS at all")
                while plain.recv(1000):
                    pass
            failures = eventually(
                lambda: broker.scrape().get("tls_handshake_failures_total", {}),
                lambda seen, count=count: seen.get(("SSL",)) == count,
            )
            assert failures == {("SSL",): count}


def test_a_transaction_without_an_owner_hangs() -> None:
    """It holds readers back, and has no age: its coordinator does not know when it began."""
    states = {1: {7: 0}, 2: {8: 4, 7: 9}, 3: {}}
    partitions = [SimpleNamespace(state=SimpleNamespace(open_transactions=opened)) for opened in states.values()]
    known = SimpleNamespace(status=TransactionStatus.ONGOING, started_ms=1000)
    broker: Any = SimpleNamespace(
        cluster=SimpleNamespace(partitions=lambda: partitions),
        coordinator=SimpleNamespace(table=SimpleNamespace(owner_of={8: known}.get)),
        clock=SimpleNamespace(wall_ms=lambda: 4000),
    )
    assert hanging_transactions(broker) == 1
    assert blocking_transaction_open_time_max_ms(broker) == 3000
    broker.clock.wall_ms = lambda: 400
    assert blocking_transaction_open_time_max_ms(broker) == 0, "the clock was set back"


@pytest.mark.slow
@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_refused_token_is_one_failure_whether_the_client_acknowledges_it_or_not(
    tmp_path: Path, acknowledges: bool
) -> None:
    settings = ("sasl.enabled.mechanisms=OAUTHBEARER", "sasl.oauthbearer.unsecured.tokens.allow=true")
    with measured_broker(tmp_path, *settings, "connection.failed.authentication.delay.ms=0") as broker:
        with RawClient(broker.secure_address) as client:
            handshake(client, "OAUTHBEARER")
            send_token(client, b"n,,\x01auth=Bearer " + unsecured_token(lifetime=-3600).encode() + b"\x01\x01")
            if acknowledges:
                answer = send_token(client, b"\x01")
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        seen = broker.scrape()
    assert seen["authentications_total"] == {("OAUTHBEARER", "failure"): 1}
    assert seen["failed_authentications_total"] == {("OAUTHBEARER", "token"): 1}
