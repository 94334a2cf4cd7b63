"""franz-go's group transactions against the broker: consume, transform, produce, exactly once."""

import json
import os
import random
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.broker.secured import Keys
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.go_module import GO_MODULE, what_is_missing
from tests.support.requests.calls import unique
from tests.support.waiting import PATIENCE_SECONDS

LIMIT_SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.go]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built."""
    missing = what_is_missing()
    if missing is not None:
        if "go" in os.environ.get("DUALWRITE_REQUIRE", "").split():
            pytest.fail(missing)
        pytest.skip(missing)
    binary = tmp_path_factory.mktemp("go") / "etl"
    built = subprocess.run(
        ["go", "build", "-buildvcs=false", "-o", str(binary), "."], cwd=GO_MODULE, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return binary


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that comes back on its own port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with ForkedBroker(tmp_path / "broker", listen=address, config={"group.initial.rebalance.delay.ms": "0"}) as made:
        yield made


@contextmanager
def running(
    program: Path, servers: str, *more: str, settings: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """The program, on topics of its own, which a client with ``settings`` creates."""
    source, target, group = unique("input"), unique("output"), unique("group")
    admin = AdminClient({"bootstrap.servers": servers, **(settings or {})})
    for made in admin.create_topics([NewTopic(source, 5), NewTopic(target, 3)]).values():
        made.result(PATIENCE_SECONDS)
    command = [str(program), "-brokers", servers, "-input", source, "-output", target, "-group", group, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def outcome_of(process: "subprocess.Popen[str]") -> tuple[int, dict[str, int]]:
    """The program's exit code and what it counted."""
    out, said = process.communicate(timeout=LIMIT_SECONDS)
    assert out, said
    outcome: dict[str, int] = json.loads(out)
    return process.returncode, outcome


def assert_exactly_once(code: int, outcome: dict[str, int], records: int) -> None:
    expected = {"records": records, "missing": 0, "duplicates": 0, "aborted_seen": 0}
    assert (code, {key: outcome[key] for key in expected}) == (0, expected)


def test_consume_transform_produce_is_exactly_once(program: Path, broker: EmbeddedBroker) -> None:
    with running(program, broker.bootstrap_servers) as process:
        code, outcome = outcome_of(process)
    assert_exactly_once(code, outcome, 10_000)
    # it did happen: aborted transactions on the way, and a worker that left and came back
    assert outcome["transactions_aborted"] > 0
    assert outcome["worker_starts"] > 3
    assert outcome["worker_failures"] == 0


def test_consume_transform_produce_is_exactly_once_over_mutual_tls(program: Path, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    files = ("-ca", keys.trust, "-cert", keys.client[0], "-key", keys.client[1], "-records", "2000")
    with ForkedBroker(tmp_path / "broker", config=keys.listeners()) as broker:
        servers = broker.listeners["MUTUAL"]
        with running(program, servers, *files, settings=keys.librdkafka(mutual=True)) as process:
            code, outcome = outcome_of(process)
    assert_exactly_once(code, outcome, 2000)


@pytest.mark.crash
def test_consume_transform_produce_is_exactly_once_through_broker_kills(program: Path, broker: EmbeddedBroker) -> None:
    with running(program, broker.bootstrap_servers, "-records", "60000") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "filled\n"
        kills = 0
        while process.poll() is None and kills < 5:
            with suppress(subprocess.TimeoutExpired):
                process.wait(random.uniform(0.3, 1))  # at a random moment
            broker.kill()
            broker.start()
            kills += 1
        code, outcome = outcome_of(process)
    assert_exactly_once(code, outcome, 60_000)
    assert kills >= 2  # as fast as it may be, it is no faster than that


@pytest.fixture(scope="module")
def own_tests(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """franz-go's own tests of its client, as they were released, built."""
    binary = tmp_path_factory.mktemp("own") / "kgo.test"
    package = "github.com/twmb/franz-go/pkg/kgo"
    built = subprocess.run(
        ["go", "test", "-c", "-o", str(binary), package], cwd=GO_MODULE, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return binary


@pytest.mark.parametrize("chaos", ["0", "1"], ids=["sound connections", "connections that break"])
def test_franz_gos_own_tests_of_groups_pass(own_tests: Path, tmp_path: Path, chaos: str) -> None:
    """Chains of groups of both protocols, with and without static members and transactions: every record once."""
    quick = {"group.consumer.heartbeat.interval.ms": "1000"}
    with ForkedBroker(tmp_path / "broker", config=quick) as broker:
        settings = {"KGO_SEEDS": broker.bootstrap_servers, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "20000"}
        done = subprocess.run(
            [
                str(own_tests),
                "-test.v",
                "-test.run",
                "^(TestGroupETL|TestTxnEtl)$",
                "-test.timeout",
                f"{LIMIT_SECONDS}s",
            ],
            cwd=tmp_path,
            env={**os.environ, **settings, "KGO_TEST_CHAOS": chaos},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-10_000:]
    assert done.stdout.count("--- PASS: TestGroupETL/") == done.stdout.count("--- PASS: TestTxnEtl/") == 6


def test_the_check_notices_aborted_records(program: Path, broker: EmbeddedBroker) -> None:
    with running(program, broker.bootstrap_servers, "-dirty") as process:
        code, outcome = outcome_of(process)
    assert code == 1
    assert outcome["aborted_seen"] > 0
