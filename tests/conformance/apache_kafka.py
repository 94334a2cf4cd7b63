"""A real Apache Kafka of one node (KRaft), as a process of the suite's own, and the Java tools that go with it."""

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from dualwrite.wire.apis import ApiVersionsRequest, MetadataRequest
from tests.broker.raw import RawClient
from tests.conformance.kafka_jars import require_java, server_classpath, tools_classpath

START_SECONDS = 60.0
"""How long a start may take before a test fails; it takes three seconds."""

TOOL_SECONDS = 60.0

_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_SERVER_LOG_LEVEL = "-Dorg.apache.logging.log4j.level=INFO"
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

    Skips the test where there is no JVM (see :func:`tests.conformance.kafka_jars.require_java`).

    :param home: an empty directory: the data, the settings, and ``server.log`` are in it.
    :param config: settings beside or instead of those of ``_FAST``.
    :param unstable_api_versions: whether InitProducerId v6 and other versions under development are served.
    :param jvm: the JVM's options. Benchmarks give their own, as these are for a quick start.
    """

    def __init__(
        self,
        home: Path,
        config: Mapping[str, str] | None = None,
        *,
        unstable_api_versions: bool = False,
        jvm: tuple[str, ...] = ("-Xms256m", "-Xmx512m", *_QUICK_START),
    ) -> None:
        self._home = home
        self._jvm = jvm
        self._port, controller = free_ports(2)
        self._config = {
            **_settings(home / "data", self._port, controller),
            **_FAST,
            "unstable.api.versions.enable": str(unstable_api_versions).lower(),
            **(config or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, the same after every restart."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process id, None if it is not running."""
        return None if self._process is None else self._process.pid

    @property
    def data_dir(self) -> Path:
        """Where Kafka keeps its partitions, one directory each."""
        return self._home / "data"

    def start(self) -> "ApacheKafka":
        """Start it, and wait until it answers as a leader does."""
        java, classpath = require_java(), server_classpath()
        self._home.mkdir(parents=True, exist_ok=True)
        settings = self._home / "server.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in self._config.items()))
        with (self._home / "server.log").open("ab") as log:
            if not self.data_dir.exists():
                form = ["kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(settings)]
                command = [java, *_QUICK_START, "-cp", classpath, *form]
                assert subprocess.run(command, stdout=log, stderr=log).returncode == 0, self.log()
            self._process = self._run(java, classpath, settings, log)
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop it cleanly."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_SECONDS)
            self._process = None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """Everything that the server said."""
        return (self._home / "server.log").read_text(errors="replace")

    def __enter__(self) -> "ApacheKafka":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()  # a clean stop takes seconds, and nobody reads the data again

    def _run(self, java: str, classpath: str, settings: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        command = [java, *self._jvm, _SERVER_LOG_LEVEL, "-cp", classpath, "kafka.Kafka", str(settings)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert process.poll() is None, f"Apache Kafka ended: {self.log()[-3000:]}"
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
        return bool(metadata.brokers) and any(feature.name == "transaction.version" for feature in features)


def java_tool(
    main_class: str, *arguments: str, stdin: str = "", timeout: float = TOOL_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Run one of Kafka's command-line tools, as ``org.apache.kafka.tools.TopicCommand``, to its end.

    :param timeout: seconds after which it is killed, with a TimeoutExpired.
    """
    command = [require_java(), *_QUICK_START, "-cp", tools_classpath(), main_class, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)


def java_program(
    source: Path, *arguments: str, stdin: str = "", timeout: float = TOOL_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Compile and run one file of Java against the client of Apache Kafka 4.4.0; needs a JDK.

    :param timeout: seconds after which it is killed, with a TimeoutExpired.
    """
    command = [require_java(), *_QUICK_START, "-cp", server_classpath(), str(source), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)


def free_ports(number: int) -> list[int]:
    """Ports on the loopback interface that nobody listens on at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [listening.getsockname()[1] for listening in sockets]
    finally:
        for listening in sockets:
            listening.close()


def _settings(data: Path, port: int, controller: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "0",
        "controller.quorum.voters": f"0@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
    }


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
