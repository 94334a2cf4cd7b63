"""A database, a topic, and the comparison of the two: as a function, and as ``dualwrite compare``."""

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from sqlalchemy import create_engine

from dualwrite.comparison.compare import compare
from dualwrite.comparison.job import Comparison, ComparisonJob, Difference
from dualwrite.comparison.key_text import shown
from dualwrite.testing.kafka import KafkaBroker
from tests.support.operations.places import CommandResult, command
from tests.support.peer_clients.kafka_helpers import PATIENCE, fresh_name

Pair = tuple[str | bytes | None, str | bytes | None]

TABLE = "orders"


class ComparisonSite:
    """A table ``orders`` of the test's own, and a topic."""

    def __init__(self, url: str, broker: KafkaBroker, *, partitions: int = 1) -> None:
        self.url = url
        self.broker = broker
        self.engine = create_engine(url)
        self.topic = broker.create_topic(partitions=partitions)
        self._producers: list[Producer] = []

    def create(self, columns: str = "id INTEGER PRIMARY KEY, item VARCHAR(40)") -> None:
        self.sql(f"CREATE TABLE {TABLE} ({columns})")

    def sql(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def insert(self, ids: Iterable[int]) -> None:
        self.sql(f"INSERT INTO {TABLE} (id) VALUES {', '.join(f'({number})' for number in ids)}")

    def produce(self, *pairs: Pair, partition: int = 0) -> None:
        """Records with these keys and values, committed."""
        self.open_transaction(*pairs, partition=partition).commit_transaction()

    def open_transaction(self, *pairs: Pair, partition: int = 0) -> Producer:
        """Records with these keys and values, in a transaction that is still open."""
        producer = Producer({**self.broker.client_config, "transactional.id": fresh_name()})
        producer.init_transactions()
        producer.begin_transaction()
        for key, value in pairs:
            producer.produce(self.topic, key=key, value=value, partition=partition)
        producer.flush()
        self._producers.append(producer)
        return producer

    def delete_records(self, before: int) -> None:
        """Delete the records of partition 0 before this offset, as retention does."""
        admin = AdminClient(self.broker.client_config)
        (deleted,) = admin.delete_records([TopicPartition(self.topic, 0, before)]).values()
        deleted.result(PATIENCE)

    def add_partitions(self, total: int) -> None:
        admin = AdminClient(self.broker.client_config)
        (added,) = admin.create_partitions([NewPartitions(self.topic, total)]).values()
        added.result(PATIENCE)

    def compare(self, *key: str, **options: Any) -> Comparison:
        """Compare once, with one look at the keys that differ; more looks with ``wait``."""
        run = {name: options.pop(name) for name in ("limit", "clock", "sleep") if name in options}
        wait = options.pop("wait", 0)
        job = ComparisonJob(TABLE, self.topic, key or ("id",), **options)
        return compare(self.engine, self.broker.client_config, job, wait=wait, **run)

    def run(self, *words: str, bootstrap: str | None = None) -> CommandResult:
        """``dualwrite compare`` with these arguments; a later one overrides an earlier one."""
        places = ["--db", self.url, "--bootstrap-servers", bootstrap or self.broker.bootstrap_servers]
        sides = ["--table", TABLE, "--topic", self.topic, "--key", "id", "--wait", "0"]
        return command("compare", *places, *sides, *words)

    def close(self) -> None:
        self._producers.clear()
        self.engine.dispose()


def pairs(keys: Iterable[int]) -> Sequence[Pair]:
    """A record for each key."""
    return [(str(key), "{}") for key in keys]


def found(result: Comparison) -> dict[Difference, list[str]]:
    """The keys of each difference that there is."""
    differences: dict[Difference, list[str]] = {}
    for example in result.examples:
        differences.setdefault(example.difference, []).append(shown(example.key))
    assert {difference: len(keys) for difference, keys in differences.items()} == {
        difference: number for difference, number in result.differing.items() if number
    }
    return differences
