"""The brokers that are measured: the bundled one, and Apache Kafka where there is a JVM, at the same durability.

``os``: what the operating system has taken is acknowledged. ``fsync``: nothing is acknowledged before it is on disk.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.kfake.contender import KFAKE, Kfake
from dualwrite import EmbeddedBroker

OURS = "dualwrite"
KAFKA = "kafka"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_WAIT_SECONDS = 30.0
_JVM = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""As kafka-server-start.sh and kafka-run-class.sh have them."""
_AS_IT_COMES = {"offsets.topic.num.partitions": "50", "transaction.state.log.num.partitions": "50"}
"""Kafka's defaults, where the tests have less for a quicker start."""


class Contender(Protocol):
    """A broker process on a data directory of its own, which it keeps when it is started again."""

    @property
    def name(self) -> str:
        """``dualwrite`` or ``kafka``."""

    @property
    def bootstrap(self) -> str:
        """HOST:PORT while it runs."""

    @property
    def pid(self) -> int:
        """The id of its process while it runs."""

    def start(self) -> None:
        """Start it, and return once it accepts connections."""

    def stop(self) -> None:
        """Stop it cleanly."""

    def kill(self) -> None:
        """Kill it with SIGKILL."""


class Bundled:
    """The bundled broker.

    :param config: broker settings by Kafka's names.
    """

    name = OURS

    def __init__(self, directory: Path, durability: str, config: Mapping[str, str] | None = None) -> None:
        self._broker = EmbeddedBroker(
            directory / f"{OURS}-{durability}", durability=durability, start_timeout=600, config=config
        )

    @property
    def bootstrap(self) -> str:
        """HOST:PORT."""
        return self._broker.bootstrap_servers

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._broker.pid is not None, "the broker is not running"
        return self._broker.pid

    def start(self) -> None:
        """Start it."""
        self._broker.start()

    def stop(self) -> None:
        """Stop it cleanly."""
        self._broker.stop(timeout=120)

    def kill(self) -> None:
        """Kill it."""
        self._broker.kill()


class Apache:
    """Apache Kafka of one node, as it comes: its own defaults, and the options that its start script gives the JVM."""

    name = KAFKA

    def __init__(self, directory: Path, durability: str) -> None:
        from tests.support.apache_kafka.single_node import ApacheKafka

        flush = {"log.flush.interval.messages": "1"} if durability == "fsync" else {}
        self._kafka = ApacheKafka(directory / f"{KAFKA}-{durability}", {**_AS_IT_COMES, **flush}, jvm=_JVM)

    @property
    def bootstrap(self) -> str:
        """HOST:PORT."""
        return self._kafka.bootstrap_servers

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._kafka.pid is not None, "the broker is not running"
        return self._kafka.pid

    def start(self) -> None:
        """Start it."""
        self._kafka.start()

    def stop(self) -> None:
        """Stop it cleanly."""
        self._kafka.stop()

    def kill(self) -> None:
        """Kill it."""
        self._kafka.kill()


def why_no_kafka() -> str | None:
    """What is missing for an Apache Kafka beside ours; None if nothing is."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"there is no {program} on the PATH"
    return None


def contenders(durability: str, directory: Path, peer: str | None) -> Sequence[Contender]:
    """The brokers to compare at ``durability``, none of them started yet.

    :param peer: the one beside ours: KAFKA, KFAKE, or none.
    """
    ours: Contender = Bundled(directory, durability)
    if peer == KFAKE:
        return [ours, Kfake(directory)]
    return [ours] if peer is None else [ours, Apache(directory, durability)]


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """A topic, as empty as it is new."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_WAIT_SECONDS)


def resident_mib(contender: Contender) -> float:
    """The memory that the broker's process occupies (VmRSS)."""
    lines = Path(f"/proc/{contender.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def processor_seconds(contender: Contender) -> float:
    """Processor time that the broker's process has used since it began."""
    fields = Path(f"/proc/{contender.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
