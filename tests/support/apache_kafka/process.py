"""One process of Apache Kafka, in any role of a cluster: formatted, started, killed, and its log."""

import random
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.apache_kafka.formatting import format_directory
from tests.support.apache_kafka.jars import require_java, server_classpath

START_SECONDS = 60.0
"""How long a start may take before a test fails; it takes three seconds."""

_SERVER_LOG_LEVEL = "-Dorg.apache.logging.log4j.level=INFO"

_LOWEST_PORT, _LOWEST_EPHEMERAL_PORT = 20_000, 32_768


class KafkaProcess:
    """``kafka.Kafka`` with ``settings``; its data, its settings and ``server.log`` are in ``home``.

    :param settings: of server.properties, ``node.id`` and the listeners among them; ``log.dirs`` is set here.
    :param jvm: the JVM's options.
    """

    def __init__(self, home: Path, settings: Mapping[str, str], jvm: tuple[str, ...]) -> None:
        self.home = home
        self.data_dir = home / "data"
        self._settings = {**settings, "log.dirs": str(self.data_dir)}
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None if it is not running."""
        return None if self._process is None else self._process.pid

    def start(self, cluster_id: str, features: Mapping[str, int] | None = None) -> None:
        """Start it, without waiting for anything; its first start formats its directory.

        :param features: levels of features that are other than this release's, as ``{"transaction.version": 1}``.
        """
        java, classpath = require_java(), server_classpath()
        self.home.mkdir(parents=True, exist_ok=True)
        path = self.home / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        if not self.data_dir.exists():
            format_directory(self.data_dir, cluster_id, self._settings, features)
        with (self.home / "server.log").open("ab") as log:
            command = [java, *self._jvm, _SERVER_LOG_LEVEL, "-cp", classpath, "kafka.Kafka", str(path)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def require_running(self) -> None:
        """Fail with the log if the process has ended by itself."""
        assert self._process is not None, f"{self.home.name} was never started"
        assert self._process.poll() is None, f"Apache Kafka ended: {self.log()[-3000:]}"

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
        """Everything that the process said."""
        return (self.home / "server.log").read_text(errors="replace")


def free_ports(number: int) -> list[int]:
    """Free ports on the loopback interface, which stay free while their process is dead.

    They are outside of what the system takes for outgoing connections: otherwise a client that tries again and again to
    reach a dead node would get the node's own port one day, and would be connected to itself.
    """
    found: list[int] = []
    candidates = random.SystemRandom().sample(range(_LOWEST_PORT, _LOWEST_EPHEMERAL_PORT), 100 * number)
    while len(found) < number:
        port = candidates.pop()
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    return found
