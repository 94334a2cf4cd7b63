"""confluent-kafka and the settings of groups: the AdminClient sets them, and a consumer's session ends by them."""

from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.settings.group_settings import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.member_process import member_process
from tests.support.requests.calls import new_topic, unique
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

LIMITS = {"group.consumer.min.session.timeout.ms": "300", "group.consumer.min.heartbeat.interval.ms": "50"}
QUICK = {SESSION_TIMEOUT: "900", HEARTBEAT_INTERVAL: "100"}


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=LIMITS) as running:
        yield running


@pytest.fixture
def administrator(shared_broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_broker.bootstrap_servers})


def described(administrator: AdminClient, group: str) -> dict[str, tuple[str, ConfigSource]]:
    """The values of a group's settings, and their sources."""
    (found,) = administrator.describe_configs([ConfigResource(ResourceType.GROUP, group)]).values()
    return {name: (entry.value, ConfigSource(entry.source)) for name, entry in found.result().items()}


def alter(
    administrator: AdminClient, group: str, values: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Set settings, or delete those whose value is None."""
    entries = [
        ConfigEntry(
            name,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    (done,) = administrator.incremental_alter_configs([resource], validate_only=validate_only).values()
    done.result()


def test_the_admin_client_sets_describes_and_deletes(administrator: AdminClient) -> None:
    group = unique("group")
    alter(administrator, group, {SESSION_TIMEOUT: "50000"}, validate_only=True)
    before = described(administrator, group)
    assert before[SESSION_TIMEOUT] == ("45000", ConfigSource.DEFAULT_CONFIG)
    alter(administrator, group, {SESSION_TIMEOUT: "50000"})
    assert described(administrator, group)[SESSION_TIMEOUT] == ("50000", ConfigSource.GROUP_CONFIG)
    with pytest.raises(KafkaException, match="must be in the range 300 to 60000 inclusive"):
        alter(administrator, group, {SESSION_TIMEOUT: "1"})
    alter(administrator, group, {SESSION_TIMEOUT: None})
    assert described(administrator, group) == before


def test_the_partitions_of_a_killed_consumer_are_free_after_the_session_timeout_of_its_group(
    shared_broker: EmbeddedBroker, client: RawClient, administrator: AdminClient
) -> None:
    """Under the broker's own timeout of 45 seconds the successor would have to wait for them."""
    topic, group = new_topic(client, 2), unique("group")
    alter(administrator, group, QUICK)
    with member_process(shared_broker.bootstrap_servers, group, topic, 2) as killed:
        killed.kill()
    successor = Consumer(
        {"bootstrap.servers": shared_broker.bootstrap_servers, "group.id": group, "group.protocol": "consumer"}
    )
    successor.subscribe([topic])

    def has_all() -> bool:
        successor.poll(0.02)
        return len(successor.assignment()) == 2

    assert eventually(has_all, patience=20)
    successor.close()
