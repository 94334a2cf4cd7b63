"""The sans-I/O end of a connection: versions, correlation, framing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.protocol.messages import RESPONSE_LIMIT, ClientProtocol
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import MalformedMessageError, read_request_head, write_response
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import FrameTooLargeError, with_size
from tests.support.client.scripted_broker import ended


def api_versions(*ranges: tuple[ApiKey, int, int], code: int = 0) -> Any:
    response = APIS[ApiKey.API_VERSIONS].response
    keys = [response.ApiVersion(api_key=int(key), min_version=low, max_version=high) for key, low, high in ranges]
    return response(error_code=int(code), api_keys=keys, throttle_time_ms=0)


def end_txn() -> Any:
    return APIS[ApiKey.END_TXN].request(transactional_id="a", producer_id=1, producer_epoch=2, committed=True)


def answered(correlation_id: int, message: Any, version: int = 4) -> bytes:
    return with_size(write_response(ApiKey.END_TXN, version, correlation_id, message))


def test_a_broker_that_lacks_our_api_versions_is_asked_again_in_its_own() -> None:
    protocol = ClientProtocol("me")
    refusal = api_versions((ApiKey.API_VERSIONS, 0, 2), code=ErrorCode.UNSUPPORTED_VERSION)
    assert protocol.learn_versions(refusal) == 2
    assert protocol.learn_versions(api_versions((ApiKey.END_TXN, 0, 1))) is None
    assert protocol.versions.of(ApiKey.END_TXN) == 1


def test_a_refusal_without_a_range_is_asked_again_in_the_oldest_version() -> None:
    assert ClientProtocol("me").learn_versions(api_versions(code=ErrorCode.UNSUPPORTED_VERSION)) == 0


def test_a_refusal_in_the_oldest_format_is_understood() -> None:
    protocol = ClientProtocol("me")
    version = int(APIS[ApiKey.API_VERSIONS].request.max_version)
    protocol.send(
        ApiKey.API_VERSIONS,
        version,
        APIS[ApiKey.API_VERSIONS].request(client_software_name="n", client_software_version="1"),
    )
    refusal = api_versions((ApiKey.API_VERSIONS, 0, 3), code=ErrorCode.UNSUPPORTED_VERSION)
    protocol.feed(with_size(write_response(ApiKey.API_VERSIONS, 0, 0, refusal)))
    response = protocol.next_response()
    assert response is not None
    assert (response.error_code, response.api_keys[0].max_version) == (ErrorCode.UNSUPPORTED_VERSION, 3)


def test_every_request_has_a_correlation_id_of_its_own_and_the_client_id() -> None:
    protocol = ClientProtocol("me")
    heads = [read_request_head(protocol.send(ApiKey.END_TXN, 4, end_txn())[4:])[0] for _ in range(3)]
    assert [head.correlation_id for head in heads] == [0, 1, 2]
    assert {head.client_id for head in heads} == {"me"}


def test_after_the_greatest_correlation_id_comes_zero() -> None:
    protocol = ClientProtocol("me")
    protocol.next_correlation_id = 2**31 - 1
    heads = [read_request_head(protocol.send(ApiKey.END_TXN, 4, end_txn())[4:])[0] for _ in range(2)]
    assert [head.correlation_id for head in heads] == [2**31 - 1, 0]


@given(st.lists(st.integers(1, 12), max_size=12))
def test_responses_come_out_whole_and_in_order_however_the_bytes_arrive(cuts: list[int]) -> None:
    protocol = ClientProtocol("me")
    for _ in range(3):
        protocol.send(ApiKey.END_TXN, 5, end_txn())
    stream = b"".join(answered(number, ended(producer=(number, 1)), version=5) for number in range(3))
    seen = []
    position = 0
    for size in (*cuts, len(stream)):
        protocol.feed(stream[position : position + size])
        position += size
        while (response := protocol.next_response()) is not None:
            seen.append(response.producer_id)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("correlation_id", [1, -1, 2**31 - 1])
def test_a_response_to_something_else_is_malformed(correlation_id: int) -> None:
    protocol = ClientProtocol("me")
    protocol.send(ApiKey.END_TXN, 4, end_txn())
    protocol.feed(answered(correlation_id, ended()))
    with pytest.raises(MalformedMessageError, match="not asked for"):
        protocol.next_response()


def test_a_response_with_a_null_where_its_schema_has_none_is_malformed() -> None:
    protocol = ClientProtocol("me")
    protocol.send(ApiKey.API_VERSIONS, 0, APIS[ApiKey.API_VERSIONS].request())
    protocol.feed(with_size(b"\0\0\0\0" + b"\0\0" + b"\xff\xff\xff\xff"))
    with pytest.raises(MalformedMessageError, match="api_keys is null"):
        protocol.next_response()


def test_a_response_to_nothing_is_malformed() -> None:
    protocol = ClientProtocol("me")
    protocol.feed(answered(0, ended()))
    with pytest.raises(MalformedMessageError, match="not asked for"):
        protocol.next_response()


@given(st.integers(0, 30))
def test_a_truncated_response_is_malformed_and_nothing_else(size: int) -> None:
    protocol = ClientProtocol("me")
    protocol.send(ApiKey.END_TXN, 5, end_txn())
    whole = write_response(ApiKey.END_TXN, 5, 0, ended(producer=(1, 1)))
    assert len(whole) <= 30
    protocol.feed(with_size(whole[:size]))
    if size >= len(whole):
        assert protocol.next_response() is not None
    else:
        with pytest.raises(MalformedMessageError):
            protocol.next_response()


@pytest.mark.parametrize("size", [RESPONSE_LIMIT + 1, -1])
def test_an_impossible_size_is_refused_before_anything_is_read(size: int) -> None:
    protocol = ClientProtocol("me")
    protocol.feed(size.to_bytes(4, "big", signed=True))
    with pytest.raises(FrameTooLargeError):
        protocol.next_response()
