"""The archive of the classes that Apache Kafka's server loads.

``python -m tests.support.apache_kafka.class_archive FILE`` is a node that leaves it.
"""

import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.support.apache_kafka.jars import require_java
from tests.support.class_archives import QUICK, archive, make_archive, mapping

KAFKA_CLASSES = archive("kafka")
QUICK_SERVER = (*QUICK, *mapping(KAFKA_CLASSES))
"""The options of a server's JVM in tests, but for its memory."""


def make_kafka_classes() -> None:
    """Make KAFKA_CLASSES; see make_archive. Without a JVM the test is skipped; see require_java."""
    require_java()
    make_archive(KAFKA_CLASSES, __name__)


def use(bootstrap: str) -> None:
    """What most tests do: a transaction, and a consumer of a group."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("topic", b"value")
    producer.commit_transaction(60)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["topic"])
    message = consumer.poll(60)
    assert message is not None, "the consumer got no record"
    assert message.value() == b"value"
    consumer.close()


def main(file: str) -> None:
    from tests.support.apache_kafka.single_node import ApacheKafka

    with tempfile.TemporaryDirectory() as directory:
        kafka = ApacheKafka(Path(directory, "node"), jvm=("-Xmx512m", *QUICK, f"-XX:ArchiveClassesAtExit={file}"))
        kafka.start()
        try:
            use(kafka.bootstrap_servers)
        finally:
            kafka.stop()  # the JVM writes the archive at its end


if __name__ == "__main__":
    main(sys.argv[1])
