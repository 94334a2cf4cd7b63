"""ApiVersions: exactly what works is advertised, and a newer client learns which version to ask for (KIP-511)."""

import struct

import pytest

from dualwrite.broker.api.routes import ROUTES
from dualwrite.wire.apis import APIS, ApiKey, ApiVersionsRequest, ApiVersionsResponse, Message
from dualwrite.wire.codec import MalformedMessageError, read_body, read_response, read_response_correlation
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import with_size
from tests.support.requests.calls import metadata
from tests.support.requests.raw_client import RawClient

EXPECTED = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.API_VERSIONS: (0, 5),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.INIT_PRODUCER_ID: (0, 6),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 6),
    ApiKey.DELETE_GROUPS: (0, 3),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
}


def request() -> Message:
    return ApiVersionsRequest(client_software_name="test", client_software_version="1")


def future_request(version: int, correlation: int) -> bytes:
    """A frame whose body this broker cannot read: a flexible header, and unknown fields."""
    head = struct.pack(">hhih", ApiKey.API_VERSIONS, version, correlation, 3) + b"raw\x00"
    return with_size(head + b"\x05java\x06" + bytes(30))


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists_every_api(client: RawClient, version: int) -> None:
    answer = client.ask(request(), version)
    assert answer.error_code == ErrorCode.NONE
    assert {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys} == EXPECTED


@pytest.mark.parametrize("key", EXPECTED, ids=lambda key: key.name)
def test_every_version_that_is_advertised_is_answered_in_its_own_form(client: RawClient, key: ApiKey) -> None:
    """The smallest valid request. Only the existence of the answer matters here, not its content."""
    for version in ROUTES[key].versions:
        emptiest = APIS[key].request()
        if key is ApiKey.PRODUCE:
            emptiest.acks = -1  # or there would be no answer
        correlation = client.send(emptiest, version)
        frame = client.receive_frame()
        assert read_response_correlation(frame) == correlation
        read_response(key, version, frame)
        with pytest.raises(MalformedMessageError):
            read_response(key, version, frame[:-1])  # there was nothing behind it


@pytest.mark.parametrize("version", [3, 4, 5])
def test_transactions_of_the_second_kind_and_consumer_groups_are_finalized(client: RawClient, version: int) -> None:
    answer = client.ask(request(), version)
    assert answer.finalized_features_epoch >= 0
    finalized = [(feature.name, feature.max_version_level) for feature in answer.finalized_features]
    supported = [
        (supported_feature.name, supported_feature.min_version, supported_feature.max_version)
        for supported_feature in answer.supported_features
    ]
    both = [("group.version", 0, 1), ("transaction.version", 0, 2)]
    assert supported == (both if version >= 4 else [])
    assert finalized == [("group.version", 1), ("transaction.version", 2)]


@pytest.mark.parametrize("version", [6, 99, 32767])
def test_a_version_from_the_future_is_answered_in_the_oldest_form(client: RawClient, version: int) -> None:
    client.send_bytes(future_request(version, 77))
    frame = client.receive_frame()
    answer = read_body(ApiVersionsResponse, 0, frame, 4)
    assert frame[:4] == struct.pack(">i", 77)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    (entry,) = answer.api_keys
    assert (entry.api_key, entry.min_version, entry.max_version) == (ApiKey.API_VERSIONS, 0, 5)


def test_the_connection_stays_open_after_a_version_from_the_future(client: RawClient) -> None:
    client.send_bytes(future_request(6, 1))
    client.receive_frame()
    assert client.ask(request(), 4).error_code == ErrorCode.NONE


@pytest.mark.parametrize("key", [key for key in EXPECTED if key is not ApiKey.API_VERSIONS])
def test_one_version_too_high_ends_the_connection(client: RawClient, key: ApiKey) -> None:
    client.send_bytes(with_size(struct.pack(">hhih", key, EXPECTED[key][1] + 1, 1, -1) + bytes(40)))
    assert client.read_to_end() == b""


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (ApiKey.PRODUCE, 2),
        (ApiKey.FETCH, 3),
        (ApiKey.CREATE_TOPICS, 1),
        (ApiKey.OFFSET_COMMIT, 1),
        (ApiKey.OFFSET_FETCH, 0),
    ],
)
def test_a_version_too_old_ends_the_connection(client: RawClient, key: ApiKey, version: int) -> None:
    client.send_bytes(with_size(struct.pack(">hhih", key, version, 1, -1) + bytes(40)))
    assert client.read_to_end() == b""


@pytest.mark.parametrize(
    ("knows_cluster", "node", "error"),
    [
        (True, 0, ErrorCode.NONE),
        (True, 7, ErrorCode.REBOOTSTRAP_REQUIRED),
        (False, 0, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, -1, ErrorCode.NONE),
        (None, 0, ErrorCode.INVALID_REQUEST),
        (True, -1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_client_of_another_cluster_or_node_gets_an_error(
    client: RawClient, knows_cluster: bool | None, node: int, error: ErrorCode
) -> None:
    cluster = {True: metadata(client).cluster_id, False: "another", None: None}[knows_cluster]
    asked = ApiVersionsRequest(
        client_software_name="test", client_software_version="1", cluster_id=cluster, node_id=node
    )
    answer = client.ask(asked, 5)
    assert (answer.error_code, bool(answer.api_keys)) == (error, error is ErrorCode.NONE)
    assert client.ask(asked, 4).error_code == ErrorCode.NONE


@pytest.mark.parametrize(("name", "number"), [("", "1"), ("test", ""), ("-test", "1"), ("te st", "1"), ("test", "1.")])
def test_a_client_software_that_has_no_proper_name_is_refused(client: RawClient, name: str, number: str) -> None:
    asked = ApiVersionsRequest(client_software_name=name, client_software_version=number)
    for version in (3, 5):
        assert client.ask(asked, version).error_code == ErrorCode.INVALID_REQUEST
    assert client.ask(asked, 0).error_code == ErrorCode.NONE
