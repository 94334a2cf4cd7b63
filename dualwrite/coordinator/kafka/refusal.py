"""Whether Kafka refuses every connection: no broker runs at any of the bootstrap servers.

A broker that is slow, or silent, does not refuse: its client waits for it as long as its configuration says.
"""

import socket
from collections.abc import Mapping
from typing import Any

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.net.connection_errors import reason_of
from dualwrite.errors import KafkaUnavailableError

_PATIENCE = 1.0
"""Seconds after which a server counts as silent. One that refuses does so at once."""


def kafka_refusal(config: Mapping[str, Any]) -> KafkaUnavailableError | None:
    """The reason why no server of ``bootstrap.servers`` accepts a connection; None if one does, or is silent."""
    reasons = []
    for server in ClientSettings.from_config(config).bootstrap:
        try:
            socket.create_connection((server.host, server.port), timeout=_PATIENCE).close()
        except TimeoutError:
            return None
        except (OSError, UnicodeError) as error:  # the second for a name that no host can have
            reasons.append(f"{server}: {reason_of(error)}")
        else:
            return None
    return KafkaUnavailableError(
        f"no broker accepted a connection as this unit of work began ({'; '.join(reasons)}), so it can have no "
        "records: it is rolled back; run it again"
    )
