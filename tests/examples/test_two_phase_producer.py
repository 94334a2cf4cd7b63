"""The example of the producer by hand: a file and a topic have the same orders, wherever the program is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dualwrite.testing.kafka import KafkaBroker
from examples.two_phase_producer import TOPIC

HOME = Path(__file__).parents[2]
KILLED = "import os, sys; from pathlib import Path; import examples.two_phase_producer as example\n{patch}\n"
BEFORE_THE_DECISION = "example.Ledger.save = lambda *_: os.kill(os.getpid(), 9)"
AFTER_THE_DECISION = "example.TwoPhaseProducer.commit_transaction = lambda *_: os.kill(os.getpid(), 9)"


def run(broker: KafkaBroker, ledger: Path, *items: str, patch: str = "") -> subprocess.CompletedProcess[str]:
    code = KILLED.format(patch=patch) + "example.main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])"
    paths = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code, broker.bootstrap_servers, str(ledger), *items],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
def test_the_ledger_and_the_topic_have_the_same_orders(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    first = run(kafka_broker, ledger, "tea", "coffee")
    assert first.stdout.splitlines() == ["left by the last run: nothing", "in the ledger: tea, coffee"], first.stderr
    for patch, item in ((BEFORE_THE_DECISION, "lost"), (AFTER_THE_DECISION, "milk")):
        assert run(kafka_broker, ledger, item, patch=patch).returncode == -signal.SIGKILL
        after = run(kafka_broker, ledger)
        ended = "committed" if item == "milk" else "aborted"
        assert after.stdout.startswith(f"left by the last run: {ended}\n"), after.stderr
    assert after.stdout.splitlines()[1] == "in the ledger: tea, coffee, milk"
    assert [record.key for record in kafka_broker.read(TOPIC, minimum=3)] == [b"tea", b"coffee", b"milk"]
