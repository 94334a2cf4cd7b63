"""A real Apache Kafka of one node (KRaft), as a process of the suite's own, and the Java tools that go with it."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from dualwrite.wire.apis import ApiVersionsRequest, MetadataRequest
from tests.support.apache_kafka.class_archive import QUICK_SERVER, make_kafka_classes
from tests.support.apache_kafka.formatting import new_cluster_id
from tests.support.apache_kafka.jars import config_tool_classpath, require_java, server_classpath, tools_classpath
from tests.support.apache_kafka.process import START_SECONDS, KafkaProcess, free_ports
from tests.support.class_archives import QUICK
from tests.support.requests.raw_client import RawClient

TOOL_SECONDS = 60.0

_POLL_SECONDS = 0.05
_FAST = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}
"""One node, and no waiting for more members: everything else is Kafka's default."""


class ApacheKafka:
    """``with ApacheKafka(directory) as kafka: … kafka.bootstrap_servers``.

    Skips the test where there is no JVM (see :func:`tests.support.apache_kafka.jars.require_java`).

    :param home: an empty directory: the data, the settings, and ``server.log`` are in it.
    :param config: settings beside or instead of those of ``_FAST``.
    :param unstable_api_versions: whether InitProducerId v6 and other versions under development are served.
    :param jvm: the JVM's options. Benchmarks give their own: without them they are for a quick start.
    :param features: levels of features that are other than Kafka's newest, as ``{"transaction.version": 1}``.
    :param also: what settings that are lists have besides, as ``{"listeners": "MORE://127.0.0.1:9999"}``.
    """

    def __init__(
        self,
        home: Path,
        config: Mapping[str, str] | None = None,
        *,
        unstable_api_versions: bool = False,
        jvm: tuple[str, ...] | None = None,
        features: Mapping[str, int] | None = None,
        also: Mapping[str, str] | None = None,
    ) -> None:
        self._port, controller = free_ports(2)
        settings = {
            **_settings(self._port, controller),
            **_FAST,
            "unstable.api.versions.enable": str(unstable_api_versions).lower(),
            **(config or {}),
        }
        for name, value in (also or {}).items():
            settings[name] = f"{settings[name]},{value}"
        self._is_quick = jvm is None
        self._process = KafkaProcess(home, settings, jvm or ("-Xms256m", "-Xmx512m", *QUICK_SERVER))
        self._cluster_id = new_cluster_id()
        self._features = features

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, the same after every restart."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process id, None if it is not running."""
        return self._process.pid

    @property
    def data_dir(self) -> Path:
        """Where Kafka keeps its partitions, one directory each."""
        return self._process.data_dir

    def start(self) -> "ApacheKafka":
        """Start it, and wait until it answers as a leader does."""
        if self._is_quick:
            make_kafka_classes()
        self._process.start(self._cluster_id, self._features)
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop it cleanly."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def log(self) -> str:
        """Everything that the server said."""
        return self._process.log()

    def __enter__(self) -> "ApacheKafka":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()  # a clean stop takes seconds, and no test reads the data again

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            self._process.require_running()
            assert time.monotonic() < deadline, f"Apache Kafka did not get ready: {self.log()[-3000:]}"
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        """Whether it knows itself as a broker, and which features it has (a client that comes earlier uses TV1)."""
        try:
            with RawClient(self.bootstrap_servers) as client:
                metadata = client.ask(MetadataRequest(topics=[]), 12)
                features = client.ask(
                    ApiVersionsRequest(client_software_name="tests", client_software_version="1"), 3
                ).finalized_features
        except OSError:
            return False
        return bool(metadata.brokers) and any(feature.name == "metadata.version" for feature in features)


def java_tool(
    main_class: str, *arguments: str, stdin: str = "", timeout: float = TOOL_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Run one of Kafka's command-line tools, as ``org.apache.kafka.tools.TopicCommand``, to its end.

    :param timeout: seconds after which it is killed, with a TimeoutExpired.
    """
    command = [require_java(), *QUICK, "-cp", tools_classpath(), main_class, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)


def kafka_configs(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run ``kafka-configs.sh`` to its end."""
    command = [require_java(), *QUICK, "-cp", config_tool_classpath(), "kafka.admin.ConfigCommand", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS)


def java_program(
    source: Path, *arguments: str, stdin: str = "", timeout: float = TOOL_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Compile and run one file of Java against the client of Apache Kafka 4.4.0; needs a JDK.

    :param timeout: seconds after which it is killed, with a TimeoutExpired.
    """
    command = [require_java(), *QUICK, "-cp", server_classpath(), str(source), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)


def _settings(port: int, controller: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "0",
        "controller.quorum.voters": f"0@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }
