"""What Apache Kafka answered in the rounds: kept as a file, for machines without a JVM.

``python -m tests.conformance.rights.recording`` asks Apache Kafka again and writes the file anew.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.recordings import SETTINGS as USUAL
from tests.conformance.rights.patterns import Start, pattern_answers
from tests.conformance.rights.rounds import SETTINGS, Answers, answers
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.conformance.subject import warm_up

_PATH = Path(__file__).parent / "recorded.json"
_PATTERNS_PATH = Path(__file__).parent / "recorded_patterns.json"


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


def recorded_patterns() -> Answers:
    """The answers of Apache Kafka in the rounds about patterns."""
    found: Answers = json.loads(_PATTERNS_PATH.read_text())
    return found


def apache_kafka_in(home: Path) -> Start:
    """Starts Apache Kafka in ``home``, again and again."""

    @contextmanager
    def start(settings: Mapping[str, str]) -> Iterator[str]:
        with ApacheKafka(home, {**USUAL, **settings}, unstable_api_versions=True) as kafka:
            warm_up(kafka.bootstrap_servers)
            yield kafka.bootstrap_servers

    return start


def _write(path: Path, found: Answers) -> None:
    path.write_text(json.dumps(found, separators=(",", ":"), indent=0) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        _write(_PATTERNS_PATH, pattern_answers(apache_kafka_in(Path(directory))))
    with tempfile.TemporaryDirectory() as directory, apache_kafka_with_rights(Path(directory)) as servers:
        _write(_PATH, answers(servers))
