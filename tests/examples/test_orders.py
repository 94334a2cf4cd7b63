"""The example in the README and those in examples/ run as they stand, and both sides have what they say."""

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.support.examples.programs import EXAMPLES, HOME
from tests.support.forked import ForkedBroker


def run(program: Path, directory: Path) -> str:
    """What ``program`` prints when it runs in ``directory``."""
    done = subprocess.run([sys.executable, str(program)], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_example() -> str:
    block = re.search(r"```python\n(.*?)```", (HOME / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return block[1]


def items(database: Path) -> list[str]:
    """The items in the table ``orders``."""
    connection = sqlite3.connect(database)
    try:
        return [item for (item,) in connection.execute("SELECT item FROM orders ORDER BY id")]
    finally:
        connection.close()


def first_record(bootstrap_servers: str) -> tuple[bytes | None, bytes | None]:
    """Key and value of the first record in the topic ``orders`` that a read_committed consumer sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition("orders", 0, OFFSET_BEGINNING)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message.key(), message.value()
    finally:
        consumer.close()


def test_the_readmes_example_is_short_and_does_what_it_says(tmp_path: Path) -> None:
    code = readme_example()
    assert len([line for line in code.splitlines() if line]) <= 15
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    said = run(tmp_path / "example.py", tmp_path)
    assert said == "committed together: a row in orders.db, a record in the topic orders\n"
    assert items(tmp_path / "orders.db") == ["tea"]
    with ForkedBroker(tmp_path / "orders-broker") as broker:
        assert first_record(broker.bootstrap_servers) == (b"tea", b"one cup")


@pytest.mark.slow
def test_the_orders_example_runs_twice(tmp_path: Path) -> None:
    for orders in (1, 2):
        assert run(EXAMPLES / "orders.py", tmp_path).splitlines() == [
            "rolled back on both sides: no coffee today",
            f"rows in the table: {orders}",
            f"records in the topic: {orders}",
        ]
    assert items(tmp_path / "orders-example" / "orders.db") == ["tea", "tea"]
