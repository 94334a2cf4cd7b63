"""The codec: messages of every API and version survive; malformed bytes give MalformedMessageError and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage

from dualwrite.wire.apis import APIS, ApiKey, ProduceRequest, SyncGroupRequest
from dualwrite.wire.codec import (
    MalformedMessageError,
    read_body,
    read_request_head,
    read_response,
    read_response_correlation,
    refuse_nulls,
    write_request,
    write_response,
)
from tests.support.strategies import attempt, messages
from tests.support.wire_schemas import fields_of, structure_of

EVERY_REQUEST = [
    (key, v) for key, api in APIS.items() for v in range(api.request.min_version, api.request.max_version + 1)
]
EVERY_RESPONSE = [
    (key, v) for key, api in APIS.items() for v in range(api.response.min_version, api.response.max_version + 1)
]

requests = st.sampled_from(EVERY_REQUEST)
responses = st.sampled_from(EVERY_RESPONSE)


def drawn_request(data: st.DataObject) -> tuple[ApiKey, int, Any]:
    key, version = data.draw(requests, label="request")
    return key, version, data.draw(messages(APIS[key].request, version), label="message")


def drawn_response(data: st.DataObject) -> tuple[ApiKey, int, Any]:
    key, version = data.draw(responses, label="response")
    return key, version, data.draw(messages(APIS[key].response, version), label="message")


def test_authorized_operations_with_the_lowest_number_are_read_as_none() -> None:
    """-2147483648 is Kafka's word for "not asked": bit 31 alone and null are the same on the wire."""
    api = ApiKey.METADATA
    given = [APIS[api].response(topics=[], authorized_operations=value) for value in ({31}, None)]
    frames = [write_response(api, 10, 1, response) for response in given]
    assert frames[0] == frames[1]
    assert read_response(api, 10, frames[0]).authorized_operations is None


@given(st.data(), st.integers(-(2**31), 2**31 - 1), st.text(max_size=20))
def test_a_request_survives_the_wire(data: st.DataObject, correlation: int, client: str) -> None:
    key, version, request = drawn_request(data)
    head, position = read_request_head(frame := write_request(key, version, correlation, client, request))
    assert head == (key, version, correlation, client)
    assert read_body(APIS[key].request, version, frame, position) == request


@given(st.data(), st.integers(0, 2**31 - 1))
def test_a_response_survives_the_wire(data: st.DataObject, correlation: int) -> None:
    key, version, response = drawn_response(data)
    frame = write_response(key, version, correlation, response)
    assert read_response_correlation(frame) == correlation
    assert read_response(key, version, frame) == response


@given(st.data())
def test_kafka_python_writes_a_request_the_same_way(data: st.DataObject) -> None:
    key, version, request = drawn_request(data)
    request.with_header(correlation_id=5, client_id="me")
    assert write_request(key, version, 5, "me", request) == request.encode(version=version, header=True)


@given(st.integers(3, 13), st.data())
def test_kafka_python_reads_produced_records_the_same_way(version: int, data: st.DataObject) -> None:
    """Even after views were read here: its own way of reading bytes is left as it was."""
    request = data.draw(messages(ProduceRequest, version))
    body = request.encode(version=version)
    assert read_body(ProduceRequest, version, body, 0) == request
    theirs = ProduceRequest.decode(body, version=version)
    assert theirs == request
    assert all(isinstance(records, bytes | None) for records in produced(theirs))


def test_kafka_python_still_copies_bytes_that_it_reads_for_others() -> None:
    read_body(ProduceRequest, 9, filled(ProduceRequest, 9).encode(version=9), 0)
    body = filled(SyncGroupRequest, 5).encode(version=5)
    read = read_body(SyncGroupRequest, 5, bytearray(body), 0)
    assert all(isinstance(assignment.assignment, bytes) for assignment in read.assignments)


@pytest.mark.parametrize("version", range(3, 14))
def test_produced_records_are_views_of_their_frame(version: int) -> None:
    frame = bytearray(b"??" + filled(ProduceRequest, version).encode(version=version))
    (records,) = produced(read_body(ProduceRequest, version, frame, 2))
    assert isinstance(records, memoryview)
    before = bytes(records)
    at = frame.index(before)
    records[:1] = b"!"
    assert frame[at : at + len(before)] == b"!" + before[1:]


def produced(request: Any) -> list[bytes | memoryview | None]:
    return [data.records for topic in request.topic_data for data in topic.partition_data]


@given(st.data())
def test_kafka_python_reads_a_response_the_same_way(data: st.DataObject) -> None:
    key, version, response = drawn_response(data)
    if key is ApiKey.API_VERSIONS:
        response.error_code = 0  # kafka-python reads a refusal as version 0, as a client has to
    theirs = APIS[key].response.decode(write_response(key, version, 5, response), version=version, header=True)
    assert theirs.header.correlation_id == 5
    assert theirs == response


@pytest.mark.parametrize(("key", "version"), EVERY_REQUEST)
def test_a_request_cut_anywhere_is_malformed(key: ApiKey, version: int) -> None:
    body = filled(APIS[key].request, version).encode(version=version)
    for length in range(len(body)):
        with pytest.raises(MalformedMessageError, match=f"v{version}: "):
            read_body(APIS[key].request, version, body[:length], 0)


@pytest.mark.parametrize(("key", "version"), EVERY_RESPONSE)
def test_a_response_cut_anywhere_is_malformed(key: ApiKey, version: int) -> None:
    frame = write_response(key, version, 1, filled(APIS[key].response, version))
    for length in range(4, len(frame)):
        with pytest.raises(MalformedMessageError):
            read_response(key, version, frame[:length])


@given(st.data(), st.binary(min_size=1, max_size=4))
def test_a_request_with_changed_bytes_is_read_or_malformed(data: st.DataObject, change: bytes) -> None:
    key, version, request = drawn_request(data)
    body = bytearray(request.encode(version=version))
    position = data.draw(st.integers(0, len(body)), label="position")
    body[position : position + len(change)] = change
    assert_read_or_malformed(APIS[key].request, version, bytes(body))


noise = st.binary(max_size=80) | st.lists(st.sampled_from([0, 1, 2, 3, 127, 128, 255]), max_size=80).map(bytes)


@given(requests, noise)
def test_any_bytes_are_a_request_or_malformed(request: tuple[ApiKey, int], body: bytes) -> None:
    assert_read_or_malformed(APIS[request[0]].request, request[1], body)


@given(responses, noise)
def test_any_bytes_are_a_response_or_malformed(response: tuple[ApiKey, int], body: bytes) -> None:
    assert_read_or_malformed(APIS[response[0]].response, response[1], body)


ARRAYS_OF_STRINGS = [
    (ApiKey.LIST_GROUPS, 5, "types_filter"),
    (ApiKey.LIST_GROUPS, 4, "states_filter"),
    (ApiKey.DELETE_TOPICS, 3, "topic_names"),
    (ApiKey.DESCRIBE_GROUPS, 5, "groups"),
    (ApiKey.DELETE_GROUPS, 2, "groups_names"),
    (ApiKey.LIST_TRANSACTIONS, 1, "state_filters"),
]


@pytest.mark.parametrize(("key", "version", "field"), ARRAYS_OF_STRINGS)
def test_an_array_of_strings_has_no_null(key: ApiKey, version: int, field: str) -> None:
    request = APIS[key].request
    for strings in ([], ["a", ""], ["a", None], [None]):
        body = bytes(request(**{field: strings}).encode(version=version))
        read = read_body(request, version, body, 0)
        assert getattr(read, field) == strings
        if None in strings:
            with pytest.raises(MalformedMessageError, match=f"{request.__name__}: an entry of {field} is null"):
                refuse_nulls(read, version)
        else:
            refuse_nulls(read, version)


def test_tags_inside_a_tagged_field_are_malformed() -> None:
    """kafka-python asserts that there are none; its AssertionError must not leave the codec."""
    no_error, no_apis, throttle = "0000", "01", "00000000"
    features = "01 00 06 02 02 61 0001 0002 01"  # one tagged field, SupportedFeatures; its element ends with one tag
    with pytest.raises(MalformedMessageError, match="ApiVersionsResponse v3"):
        read_body(APIS[ApiKey.API_VERSIONS].response, 3, bytes.fromhex(no_error + no_apis + throttle + features), 0)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_request_header_or_malformed(frame: bytes) -> None:
    outcome = attempt(lambda: read_request_head(frame), MalformedMessageError)
    if isinstance(outcome, MalformedMessageError):
        assert "request header" in str(outcome)
    else:
        head, position = outcome
        assert head.api_key == int.from_bytes(frame[:2], "big", signed=True)
        assert position >= 10


@pytest.mark.parametrize(
    ("frame", "client_id", "position"),
    [
        pytest.param("0012 0000 00000007 ffff", None, 10, id="no client id"),
        pytest.param("0012 0000 00000007 0002 6162", "ab", 12, id="not flexible"),
        pytest.param("0012 0003 00000007 0002 6162 00", "ab", 13, id="flexible"),
        pytest.param("0012 0003 00000007 0001 61 01 05 02 ffff", "a", 16, id="flexible, with a tag"),
        pytest.param("0fff 0000 00000007 0001 61", "a", 11, id="an unknown API"),
        pytest.param("0012 0063 00000007 0001 61 00", "a", 11, id="an unknown version"),
    ],
)
def test_request_headers_are_read_in_every_version(frame: str, client_id: str | None, position: int) -> None:
    head, end = read_request_head(bytes.fromhex(frame))
    assert (head.correlation_id, head.client_id, end) == (7, client_id, position)


@pytest.mark.parametrize(
    "frame", ["", "0012", "0012000300000007", "00120003000000070005 6162", "0012000300000007 0001 ff 00"]
)
def test_a_malformed_request_header_is_refused(frame: str) -> None:
    with pytest.raises(MalformedMessageError, match="request header"):
        read_request_head(bytes.fromhex(frame))


def test_a_response_without_a_correlation_id_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="correlation id"):
        read_response_correlation(b"\x00\x00\x01")


def test_api_versions_is_answered_with_the_oldest_header() -> None:
    response = APIS[ApiKey.API_VERSIONS].response(error_code=0, api_keys=[], throttle_time_ms=0)
    assert (
        write_response(ApiKey.API_VERSIONS, 3, 9, response)[4:6] == b"\x00\x00"
    )  # the error code, and no tags before it


def filled(message: type[ApiMessage], version: int) -> Any:
    """A message with one element in each array."""
    return _filled(message, structure_of(message), version)


def _filled(container: Any, struct: Any, version: int) -> Any:
    samples = {"bool": True, "string": "abc", "bytes": b"xy", "records": b"xyz", "bitfield": {1}}
    values: dict[str, Any] = {}
    for field in fields_of(struct, version):
        if field.type_str == "uuid":
            continue
        if field.is_struct_array():
            values[field.name] = [_filled(field.data_class, field.array_of, version)]
        elif field.is_struct():
            values[field.name] = _filled(field.data_class, field, version)
        elif field.type_str.startswith("[]"):
            values[field.name] = [samples.get(field.type_str[2:], 1)]
        else:
            values[field.name] = samples.get(field.type_str, 1)
    return container(version=version, **values)


def assert_read_or_malformed(message: Any, version: int, body: bytes) -> None:
    outcome = attempt(lambda: read_body(message, version, body, 0), MalformedMessageError)
    if isinstance(outcome, MalformedMessageError):
        assert str(outcome).startswith(f"{message.__name__} v{version}: ")
    else:
        assert isinstance(outcome, message)
