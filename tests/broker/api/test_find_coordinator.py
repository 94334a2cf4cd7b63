"""FindCoordinator: the one node coordinates transactions and groups, and refuses other key types."""

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.apis import FindCoordinatorRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.raw_client import RawClient

GROUP, TRANSACTION, SHARE = 0, 1, 2


def address(node: Message) -> str:
    return f"{node.host}:{node.port}"


@pytest.mark.parametrize(("version", "kind"), [(0, GROUP), *((v, k) for v in (1, 2, 3) for k in (GROUP, TRANSACTION))])
def test_a_group_and_a_transactional_id_have_a_coordinator(
    client: RawClient, shared_broker: EmbeddedBroker, version: int, kind: int
) -> None:
    answer = client.ask(FindCoordinatorRequest(key="name", key_type=kind), version)
    assert (answer.error_code, answer.node_id) == (ErrorCode.NONE, 0)
    assert address(answer) == shared_broker.bootstrap_servers


@pytest.mark.parametrize("version", range(4, 7))
@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
def test_several_keys_are_asked_for_at_once(
    client: RawClient, shared_broker: EmbeddedBroker, version: int, kind: int
) -> None:
    answer = client.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=["a", "b"]), version)
    assert [(entry.key, entry.error_code, address(entry)) for entry in answer.coordinators] == [
        (key, ErrorCode.NONE, shared_broker.bootstrap_servers) for key in ("a", "b")
    ]


def test_a_key_of_another_kind_has_no_coordinator(client: RawClient) -> None:
    answer = client.ask(FindCoordinatorRequest(key="a", key_type=SHARE), 3)
    assert (answer.error_code, answer.node_id) == (ErrorCode.INVALID_REQUEST, -1)


@pytest.mark.parametrize("kind", [SHARE, 7])
def test_several_keys_of_another_kind_have_no_coordinator(client: RawClient, kind: int) -> None:
    answer = client.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=["a"]), 6)
    (entry,) = answer.coordinators
    assert (entry.key, entry.error_code, entry.port) == ("a", ErrorCode.INVALID_REQUEST, -1)
