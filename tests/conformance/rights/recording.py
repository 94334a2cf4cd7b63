"""What Apache Kafka answered in the rounds: kept as a file, for machines without a JVM.

``python -m tests.conformance.rights.recording`` asks Apache Kafka again and writes the file anew.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.recordings import SETTINGS as USUAL
from tests.conformance.rights.rounds import SETTINGS, Answers, answers
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.conformance.subject import warm_up

_PATH = Path(__file__).parent / "recorded.json"


def recorded() -> Answers:
    """The answers of Apache Kafka."""
    found: Answers = json.loads(_PATH.read_text())
    return found


@contextmanager
def apache_kafka_with_rights(home: Path) -> Iterator[str]:
    """The bootstrap servers of an Apache Kafka whose authorizer decides."""
    with ApacheKafka(home, {**USUAL, **SETTINGS}, unstable_api_versions=True) as kafka:
        warm_up(kafka.bootstrap_servers)
        yield kafka.bootstrap_servers


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, apache_kafka_with_rights(Path(directory)) as servers:
        _PATH.write_text(json.dumps(answers(servers), separators=(",", ":"), indent=0) + "\n")
