"""The Java client of Apache Kafka 4.4.0, unmodified, on the bundled broker."""

from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.conformance.apache_kafka import java_program

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

PROGRAMS = Path(__file__).parent / "java"


def test_transactions_fencing_both_isolations_and_admin(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        done = java_program(PROGRAMS / "Transactions.java", broker.bootstrap_servers, "orders")
    assert done.stdout.splitlines() == [
        "transaction.version 2",
        "state Ongoing",
        "open at 7",
        "read_uncommitted 8",
        "read_committed 7",
        "fenced",
        "committed [a, b, c, d]",
        "all [a, b, aborted, c, open, d]",
    ], done.stderr
