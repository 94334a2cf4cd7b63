"""A classic group whose broker is killed: a member that does not come back is removed, as by a broker that goes on."""

from pathlib import Path

from dualwrite.wire.apis import DescribeGroupsRequest
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import new_topic, unique
from tests.support.requests.group_calls import joined_member
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

SHORT_SESSIONS = {"group.min.session.timeout.ms": "100", "group.initial.rebalance.delay.ms": "0"}


def state(client: RawClient, group: str) -> str:
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    (described,) = client.ask(request, 5).groups
    return str(described.group_state)


def test_a_restarted_broker_removes_a_member_that_does_not_come_back(tmp_path: Path) -> None:
    group = unique("group")
    with ForkedBroker(tmp_path / "broker", config=SHORT_SESSIONS) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            joined_member(client, group, new_topic(client), session_timeout_ms=60_000)
            joined_member(client, other := unique("group"), new_topic(client), session_timeout_ms=1000)
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            assert eventually(lambda: state(client, other), lambda seen: seen == "Empty") == "Empty"
            assert state(client, group) == "Stable"
