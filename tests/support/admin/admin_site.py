"""A cluster with topics and transactions of the test's own, and the daily verbs run on it."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer

from dualwrite.admin.topics import create_topic
from tests.support.operations.places import CommandResult, command
from tests.support.peer_clients.kafka_helpers import PATIENCE, fresh_name


class AdminSite:
    """What a test does to the cluster at ``bootstrap_servers``.

    :param config: the client's further settings, for a cluster that asks for more.
    """

    def __init__(self, bootstrap_servers: str, config: Mapping[str, str] | None = None) -> None:
        self.config: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, **(config or {})}
        self._open: list[Producer] = []

    def topic(self, partitions: int = 1, **settings: str) -> str:
        """A new topic; underscores in the names of settings stand for dots."""
        name = fresh_name()
        config = {key.replace("_", "."): value for key, value in settings.items()}
        assert create_topic(self.config, name, partitions=partitions, config=config)
        return name

    def plain(self, topic: str, *keys: str, partition: int = 0, **fields: Any) -> None:
        """Records of a producer without transactions, with these keys."""
        producer = Producer(self.config)
        for key in keys:
            producer.produce(topic, key=key, partition=partition, **{"value": f"value of {key}", **fields})
        assert producer.flush(PATIENCE) == 0

    def producer(self) -> "TransactionProducer":
        """A transactional producer; what it leaves open is aborted in the end."""
        made = TransactionProducer(self.config)
        self._open.append(made.producer)
        return made

    def consumer(self, group: str, topic: str) -> Consumer:
        """A read_committed member of ``group``, which begins with the first record."""
        settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        consumer = Consumer({**self.config, **settings, "isolation.level": "read_committed"})
        consumer.subscribe([topic])
        return consumer

    def consume(self, group: str, topic: str, number: int) -> Consumer:
        """A member that has read ``number`` records and committed their offsets."""
        consumer = self.consumer(group, topic)
        messages = consumer.consume(number, PATIENCE)
        assert len(messages) == number
        assert not [message.error() for message in messages if message.error()]
        consumer.commit(asynchronous=False)
        return consumer

    def run(self, *words: str, servers: str | None = None) -> CommandResult:
        """``dualwrite WORDS`` on this cluster, in this process."""
        settings = [word for key, value in self.config.items() if "." in key for word in ("-X", f"{key}={value}")]
        others = settings[2:]  # the first is the address, which has an option of its own
        return command(*words, "--bootstrap-servers", servers or self.config["bootstrap.servers"], *others)

    def rows(self, *words: str) -> list[list[str]]:
        """The cells of a table that ``dualwrite WORDS`` prints, without its heads."""
        code, out, err = self.run(*words)
        assert (code, err) == (0, ""), err
        return [line.split() for line in out.splitlines()[1:]]

    def close(self) -> None:
        self._open.clear()


class TransactionProducer:
    """A producer with a transactional id of its own."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.name = fresh_name()
        self.producer = Producer({**config, "transactional.id": self.name})
        self.producer.init_transactions(PATIENCE)

    def write(self, topic: str, *keys: str, partition: int = 0) -> "TransactionProducer":
        """Begin a transaction with these records, which the broker has."""
        self.producer.begin_transaction()
        for key in keys:
            self.producer.produce(topic, key=key, value=f"value of {key}", partition=partition)
        assert self.producer.flush(PATIENCE) == 0
        return self

    def commit(self) -> "TransactionProducer":
        self.producer.commit_transaction(PATIENCE)
        return self

    def abort(self) -> "TransactionProducer":
        self.producer.abort_transaction(PATIENCE)
        return self
