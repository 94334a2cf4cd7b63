"""A producer's engine on a simulated cluster, initialised and ready for a transaction."""

from collections import deque
from typing import Any

from dualwrite.client.protocol.requests import GroupMember
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver

T0 = TopicPartition("t", 0)
MEMBER = GroupMember("g", 3, "member-1")


def ready(cluster: SimulatedCluster | None = None, **settings: Any) -> SimulatedDriver:
    """A producer that is initialised and has found its way about."""
    driver = SimulatedDriver(cluster or SimulatedCluster(), **settings)
    driver.init()
    driver.begin(b"first")
    driver.commit()
    driver.cluster.requests.clear()
    return driver


def refuse(driver: SimulatedDriver, api_key: ApiKey, *codes: ErrorCode) -> None:
    driver.cluster.refusals[api_key] = deque(codes)


def committed(driver: SimulatedDriver, partition: int = 0) -> list[bytes | None]:
    return driver.cluster.logs[TopicPartition("t", partition)].committed()[1 if not partition else 0 :]
