"""franz-go's group transactions against the broker: consume, transform, produce, exactly once."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.broker.embedded import EmbeddedBroker
from tests.broker.calls import unique
from tests.broker.raw import PATIENCE_SECONDS

MODULE = Path(__file__).parent / "go"
LIMIT_SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.go]


def what_is_missing() -> str | None:
    """Why the module cannot be built here; None if it can."""
    if shutil.which("go") is None:
        return "no go toolchain on PATH"
    # Here go.mod is read, which says the version that is needed.
    version = subprocess.run(["go", "version"], cwd=MODULE, capture_output=True, text=True)
    return None if version.returncode == 0 else version.stderr.strip()


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
        ["go", "build", "-buildvcs=false", "-o", str(binary), "."], cwd=MODULE, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return binary


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path / "broker") as running:
        yield running.bootstrap_servers


def run(program: Path, servers: str, *more: str) -> tuple[int, dict[str, int]]:
    """The program's exit code and what it counted, on topics of its own."""
    source, target, group = unique("input"), unique("output"), unique("group")
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(source, 5), NewTopic(target, 3)]).values():
        made.result(PATIENCE_SECONDS)
    command = [str(program), "-brokers", servers, "-input", source, "-output", target, "-group", group, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.stdout, done.stderr
    outcome: dict[str, int] = json.loads(done.stdout)
    return done.returncode, outcome


def test_consume_transform_produce_is_exactly_once(program: Path, servers: str) -> None:
    code, outcome = run(program, servers)
    expected = {"records": 10_000, "missing": 0, "duplicates": 0, "aborted_seen": 0}
    assert (code, {key: outcome[key] for key in expected}) == (0, expected)
    # it did happen: aborted transactions on the way, and a worker that left and came back
    assert outcome["transactions_aborted"] > 0
    assert outcome["worker_starts"] > 3


def test_the_check_notices_aborted_records(program: Path, servers: str) -> None:
    code, outcome = run(program, servers, "-dirty")
    assert code == 1
    assert outcome["aborted_seen"] > 0
