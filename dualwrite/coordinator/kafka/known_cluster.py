"""The identity of the Kafka cluster that an application uses: requested once per process, before its first lease."""

import os
import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

from dualwrite.client.admin.inspector import Inspector
from dualwrite.client.config.librdkafka_settings import LibrdkafkaSettings
from dualwrite.client.config.reading import step_timeout
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.rules.identities import ClusterIdentity
from dualwrite.errors import ForeignClusterError, KafkaRefusedError


class KnownCluster:
    """The identity of the cluster behind ``config``. Thread-safe.

    :param with_log_directory: True to request its data directory as well, for a database that is a file beside it.
    :param timeout: seconds that the request may take; None for step_timeout().
    :param make_inspector: makes the Inspector, and ``runtime`` the lock; others are for tests.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        with_log_directory: bool,
        timeout: float | None = None,
        make_inspector: Callable[..., Inspector] = Inspector,
        runtime: Runtime = THIS_PROCESS,
    ) -> None:
        self._config = config
        self._with_log_directory = with_log_directory
        self._timeout = timeout
        self._make_inspector = make_inspector
        self._lock = runtime.lock()
        self._identity: ClusterIdentity | None = None

    def __call__(self) -> ClusterIdentity:
        """The identity; requested until there is an answer, and then kept.

        :raises KafkaUnavailableError: if no broker answers in time.
        """
        identity = self._identity
        if identity is None:
            with self._lock:
                identity = self._identity or self._request(with_log_directory=self._with_log_directory)
                self._identity = identity
        return identity

    def require_same(self) -> None:
        """Require that the same cluster answers as at first. Call it before any recovery: a state row decides about a
        transaction in the cluster that its lease was taken for.

        :raises ForeignClusterError: if another cluster answers.
        :raises KafkaUnavailableError: if no broker answers in time.
        """
        identity = self._identity
        if identity is None or identity.cluster_id is None:
            return
        cluster_id_now = self._request(with_log_directory=False).cluster_id
        if cluster_id_now != identity.cluster_id:
            raise ForeignClusterError(
                f"the Kafka cluster behind {self._config.get('bootstrap.servers')} is {cluster_id_now} now, and was "
                f"{identity.cluster_id} when this process began: transactions that are open there can be recovered "
                "only there. Make the address lead to that cluster again; or restart, and run "
                "`dualwrite db moved --db URL` if that cluster is gone"
            )

    def _request(self, *, with_log_directory: bool) -> ClusterIdentity:
        timeout = self._timeout
        if timeout is None:
            timeout = step_timeout(LibrdkafkaSettings.of(self._config).delivery_timeout)
        cluster = self._make_inspector(self._config, timeout=timeout)
        try:
            cluster_id = cluster.cluster_id()
            return ClusterIdentity(cluster_id, log_directory_identity(cluster) if with_log_directory else None)
        finally:
            cluster.close()


def log_directory_identity(cluster: Inspector) -> str | None:
    """Device and inode of the only log directory of the cluster's only broker, if the broker has one of this machine's
    own addresses: a path of another machine is meaningless here."""
    try:
        directories = cluster.log_directories()
        if len(directories) != 1 or not _is_loopback(directories[0].host):
            return None
        status = os.stat(directories[0].path)
    except (KafkaRefusedError, OSError):
        return None
    return f"{status.st_dev}:{status.st_ino}"


def _is_loopback(host: str) -> bool:
    addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    return all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)
