"""What Apache Kafka answered: kept as files, so that the bundled broker is compared with it where there is no JVM.

``python -m tests.conformance.recordings`` asks Apache Kafka again and writes the files anew.
"""

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from tests.conformance.cases import CASES
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.conformance.subject import Subject, warm_up

Transcript = dict[str, str]

SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "6000",
    "log.initial.task.delay.ms": "3600000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.two.phase.commit.enable": "true",
}
"""What Apache Kafka has otherwise than by default: two-phase commit, and consumer groups that assign at once, as the
bundled broker has them, short sessions of their members, frequent looks for transactions that have timed out, and no
retention."""

_DIRECTORY = Path(__file__).parent / "recorded"

for _module in sorted(Path(__file__).parent.glob("cases/[a-z]*.py")):
    import_module(f"tests.conformance.cases.{_module.stem}")


def run(name: str, bootstrap_servers: str) -> Transcript:
    """The transcript of the case ``name``."""
    with Subject(bootstrap_servers) as subject:
        CASES[name](subject)
        return subject.transcript


def recorded() -> dict[str, Transcript]:
    """Every transcript of Apache Kafka, by the case's name."""
    found: dict[str, Transcript] = {}
    for path in sorted(_DIRECTORY.glob("*.json")):
        found |= {f"{path.stem}.{name}": lines for name, lines in json.loads(path.read_text()).items()}
    return found


def _record(modules: list[str]) -> None:
    with tempfile.TemporaryDirectory() as home, ApacheKafka(Path(home), SETTINGS, unstable_api_versions=True) as kafka:
        warm_up(kafka.bootstrap_servers)
        for module in modules or sorted({name.partition(".")[0] for name in CASES}):
            print(module)
            names = [name for name in CASES if name.startswith(f"{module}.")]
            transcripts = {name.partition(".")[2]: run(name, kafka.bootstrap_servers) for name in names}
            path = _DIRECTORY / f"{module}.json"
            path.write_text(json.dumps(transcripts, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    _record(sys.argv[1:])
