"""The Java client of Apache Kafka 4.4.0, unmodified, on the bundled broker."""

from pathlib import Path

import pytest

from dualwrite.broker.settings.properties import write_properties
from tests.support.apache_kafka.single_node import java_program
from tests.support.broker.secured import Keys
from tests.support.forked import ForkedBroker

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

PROGRAMS = Path(__file__).parent / "java"
SAID = [
    "transaction.version 2",
    "state Ongoing",
    "open at 7",
    "read_uncommitted 8",
    "read_committed 7",
    "fenced",
    "committed [a, b, c, d]",
    "all [a, b, aborted, c, open, d]",
]


def test_the_java_client_runs_transactions_fencing_both_isolations_and_admin(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path / "broker") as broker:
        done = java_program(PROGRAMS / "Transactions.java", broker.bootstrap_servers, "orders")
    assert done.stdout.splitlines() == SAID, done.stderr


def test_the_java_client_goes_on_after_a_transaction_that_has_timed_out(tmp_path: Path) -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with ForkedBroker(tmp_path / "broker", config=often) as broker:
        done = java_program(PROGRAMS / "TimedOut.java", broker.bootstrap_servers, "orders")
    assert done.stdout.splitlines() == ["not sent: InvalidProducerEpochException", "committed"], done.stderr


def test_the_java_client_runs_transactions_over_mutual_tls(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    own = keys.authority.issue("orders", hosts=()).in_one(tmp_path / "own.pem")
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": keys.trust,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": own,
    }
    file = tmp_path / "client.properties"
    file.write_text(write_properties(settings))
    with ForkedBroker(tmp_path / "broker", config=keys.listeners()) as broker:
        done = java_program(PROGRAMS / "Transactions.java", broker.listeners["MUTUAL"], "orders", str(file))
    assert done.stdout.splitlines() == SAID, done.stderr
