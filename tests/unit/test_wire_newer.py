"""Messages of versions that kafka-python does not know: ours read and write them, and kafka-python keeps its own."""

from kafka.protocol.api_header import RequestHeader
from kafka.protocol.metadata import ApiVersionsRequest as TheirRequest
from kafka.protocol.metadata import ApiVersionsResponse as TheirResponse

from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import read_body, refuse_nulls
from dualwrite.wire.newer import ApiVersionsRequest, ApiVersionsResponse

SOFTWARE = {"client_software_name": "a", "client_software_version": "1"}


def test_the_fifth_version_tells_cluster_and_node() -> None:
    request = ApiVersionsRequest(**SOFTWARE, cluster_id="x", node_id=3)
    body = bytes(request.encode(version=5))
    assert body == bytes.fromhex("0261 0231 0278 00000003 00")
    read = read_body(ApiVersionsRequest, 5, body, 0)
    assert (read.client_software_name, read.cluster_id, read.node_id) == ("a", "x", 3)


def test_neither_is_null_and_minus_one() -> None:
    body = bytes(ApiVersionsRequest(**SOFTWARE).encode(version=5))
    assert body == bytes.fromhex("0261 0231 00 ffffffff 00")
    read = read_body(ApiVersionsRequest, 5, body, 0)
    refuse_nulls(read, 5)
    assert (read.cluster_id, read.node_id) == (None, -1)


def test_older_versions_are_as_they_were() -> None:
    for version in range(5):
        ours = ApiVersionsRequest(**SOFTWARE, cluster_id="x", node_id=3).encode(version=version)
        assert ours == TheirRequest(**SOFTWARE).encode(version=version)


def test_kafka_python_keeps_its_own_classes() -> None:
    assert (TheirRequest.max_version, APIS[ApiKey.API_VERSIONS].request.max_version) == (4, 5)
    assert APIS[ApiKey.API_VERSIONS].response is ApiVersionsResponse
    header = RequestHeader(request_api_key=18, request_api_version=4, correlation_id=1, client_id="c")
    assert issubclass(header.get_response_class(), TheirResponse)
