"""The example of the producer by hand: a file and a topic have the same orders, wherever the program is killed."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dualwrite.testing.kafka import KafkaBroker
from examples.two_phase_producer import TOPIC
from tests.support.examples.programs import EXAMPLES, environment

KILLED = "import os, sys; from pathlib import Path; import examples.two_phase_producer as example\n{patch}\n"
BEFORE_THE_DECISION = "example.Ledger.save = lambda *_: os.kill(os.getpid(), 9)"
AFTER_THE_DECISION = "example.TwoPhaseProducer.commit_transaction = lambda *_: os.kill(os.getpid(), 9)"


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


def run(broker: KafkaBroker, ledger: Path, *items: str, patch: str = "") -> subprocess.CompletedProcess[str]:
    code = KILLED.format(patch=patch) + "example.main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])"
    return subprocess.run(
        [sys.executable, "-c", code, broker.bootstrap_servers, str(ledger), *items],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("program", "usage"),
    [("two_phase_producer.py", "HOST:PORT FILE ITEM…"), ("flask_stock.py", "ARTICLE COUNT")],
)
def test_a_program_without_its_arguments_says_which_they_are(program: str, usage: str) -> None:
    path = str(EXAMPLES / program)
    done = subprocess.run([sys.executable, path], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"usage: {path} {usage}\n")


@pytest.mark.slow
def test_the_ledger_and_the_topic_have_the_same_orders(broker: KafkaBroker, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    first = run(broker, ledger, "tea", "coffee")
    assert first.stdout.splitlines() == ["left by the last run: nothing", "in the ledger: tea, coffee"], first.stderr
    for patch, item in ((BEFORE_THE_DECISION, "lost"), (AFTER_THE_DECISION, "milk")):
        assert run(broker, ledger, item, patch=patch).returncode == -signal.SIGKILL
        after = run(broker, ledger)
        ended = "committed" if item == "milk" else "aborted"
        assert after.stdout.startswith(f"left by the last run: {ended}\n"), after.stderr
    assert after.stdout.splitlines()[1] == "in the ledger: tea, coffee, milk"
    assert [record.key for record in broker.read(TOPIC, minimum=3)] == [b"tea", b"coffee", b"milk"]
