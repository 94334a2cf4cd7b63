"""What Apache Kafka answered at the last epoch: kept as a file, for machines without a JVM.

``python -m tests.conformance.epochs.recording`` asks Apache Kafka again and writes the file anew.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.epochs.cases import SETTINGS, run
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.conformance.subject import warm_up

_PATH = Path(__file__).parent / "recorded.json"


def recorded() -> dict[str, str]:
    """The answers of Apache Kafka."""
    answers: dict[str, str] = json.loads(_PATH.read_text())
    return answers


@contextmanager
def apache_kafka_of_epochs(home: Path) -> Iterator[ApacheKafka]:
    """An Apache Kafka that may be killed."""
    with ApacheKafka(home, SETTINGS) as kafka:
        warm_up(kafka.bootstrap_servers)
        yield kafka


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, apache_kafka_of_epochs(Path(directory)) as running:
        _PATH.write_text(json.dumps(run(running), indent=2, ensure_ascii=False) + "\n")
