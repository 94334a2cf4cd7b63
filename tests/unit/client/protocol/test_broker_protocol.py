"""The opening of a connection and what follows, as bytes alone: every order, every split, every refusal."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.config.settings import SaslSettings
from dualwrite.client.net.sasl import make_mechanism
from dualwrite.client.protocol.broker_protocol import BrokerProtocol, Response
from dualwrite.client.terms.versions import TRANSACTION_VERSION
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import read_body, read_request_head, write_response
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import frame_size, with_size
from tests.support.client.sasl_server import ScramServer, handshake_answer, sasl_answer
from tests.support.client.scripted_broker import ended

ANSWERS: dict[str, tuple[Any, ...]] = {
    "PLAIN": (handshake_answer(), sasl_answer()),
    "SCRAM-SHA-256": (handshake_answer(), ScramServer("p", "sha256").first, ScramServer("p", "sha256").final),
}


def api_versions(cap: int = 4, code: int = 0, epoch: int = 0) -> Any:
    response = APIS[ApiKey.API_VERSIONS].response
    ranges = {key: (0, int(api.request.max_version)) for key, api in APIS.items()} | {ApiKey.API_VERSIONS: (0, cap)}
    return response(
        error_code=int(code),
        api_keys=[response.ApiVersion(api_key=int(k), min_version=a, max_version=b) for k, (a, b) in ranges.items()],
        throttle_time_ms=0,
        finalized_features_epoch=epoch,
        finalized_features=[
            response.FinalizedFeatureKey(name=TRANSACTION_VERSION, min_version_level=0, max_version_level=2)
        ],
    )


class AnsweringBroker:
    """Answers the requests that a node writes: ApiVersions of up to ``cap``, then one answer after another."""

    def __init__(self, *answers: Any, cap: int = 4) -> None:
        self.asked: list[tuple[ApiKey, int]] = []
        self._answers = list(answers)
        self._cap = cap

    def answer(self, written: bytes) -> bytes:
        answers = b""
        while written:
            size = frame_size(written[:4], 1 << 20)
            answers += self._answer(written[4 : 4 + size])
            written = written[4 + size :]
        return answers

    def _answer(self, frame: bytes) -> bytes:
        head, position = read_request_head(frame)
        key = ApiKey(head.api_key)
        self.asked.append((key, head.version))
        message = read_body(APIS[key].request, head.version, frame, position)
        version = head.version
        if key is not ApiKey.API_VERSIONS:
            answer = self._answers.pop(0)
            answer = answer(message) if callable(answer) else answer
        elif version > self._cap:
            answer, version = api_versions(self._cap, ErrorCode.UNSUPPORTED_VERSION), 0
        else:
            answer = api_versions(self._cap)
        return with_size(write_response(key, version, head.correlation_id, answer))


def node(mechanism: str | None = None, password: str = "p") -> BrokerProtocol:
    made = None if mechanism is None else make_mechanism(SaslSettings(mechanism, "u", password))
    return BrokerProtocol("b:1", "me", made)


def opened(
    client: BrokerProtocol, broker: AnsweringBroker, pieces: Callable[[bytes], list[bytes]] = lambda data: [data]
) -> BrokerProtocol:
    """``client`` after a whole opening in which the broker's bytes arrive in ``pieces``."""
    written = client.start()
    while not client.is_open:
        arriving = pieces(broker.answer(written))
        assert arriving, "the node wrote nothing and is not open"
        written = b"".join(client.advance(piece) for piece in arriving)
    assert written == b""
    return client


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def end_txn(producer_id: int = 1) -> Any:
    return APIS[ApiKey.END_TXN].request(transactional_id="a", producer_id=producer_id, producer_epoch=2, committed=True)


def echo(message: Any) -> Any:
    return ended(producer=(message.producer_id, 1))


@pytest.mark.parametrize(("cap", "asked"), [(5, [4]), (4, [4]), (3, [4, 3]), (2, [4, 2]), (1, [4, 1]), (0, [4, 0])])
def test_a_connection_is_open_once_the_brokers_versions_are_known(cap: int, asked: list[int]) -> None:
    broker = AnsweringBroker(cap=cap)
    client = opened(node(), broker)
    assert broker.asked == [(ApiKey.API_VERSIONS, version) for version in asked]
    assert client.versions.of(ApiKey.END_TXN) == 5
    assert client.versions.features == ({TRANSACTION_VERSION: 2} if cap >= 3 else {})


@pytest.mark.parametrize("mechanism", [None, *ANSWERS])
@pytest.mark.parametrize("cap", [0, 4])
def test_the_opening_succeeds_in_whatever_pieces_it_arrives(mechanism: str | None, cap: int) -> None:
    server = ScramServer("p", "sha256")
    answers = (handshake_answer(), server.first, server.final) if mechanism == "SCRAM-SHA-256" else ANSWERS["PLAIN"]
    client = opened(node(mechanism), AnsweringBroker(*answers, cap=cap), bytewise)
    assert client.is_open
    assert client.unanswered == 0


def test_sasl_comes_after_the_versions_in_the_newest_version_that_is_shared() -> None:
    broker = AnsweringBroker(*ANSWERS["PLAIN"])
    opened(node("PLAIN"), broker)
    assert broker.asked == [(ApiKey.API_VERSIONS, 4), (ApiKey.SASL_HANDSHAKE, 1), (ApiKey.SASL_AUTHENTICATE, 2)]


@pytest.mark.parametrize(("lifetime_ms", "seconds"), [(0, None), (90_000, 90.0)])
def test_how_long_the_authentication_lasts_is_known(lifetime_ms: int, seconds: float | None) -> None:
    client = opened(node("PLAIN"), AnsweringBroker(handshake_answer(), sasl_answer(lifetime_ms=lifetime_ms)))
    assert client.session_lifetime == seconds


def test_a_broker_that_refuses_its_own_version_of_api_versions_is_unavailable() -> None:
    client = node()
    client.start()
    refusal = api_versions(2, ErrorCode.UNSUPPORTED_VERSION)
    assert client.advance(with_size(write_response(ApiKey.API_VERSIONS, 0, 0, refusal)))
    with pytest.raises(KafkaUnavailableError, match="broker b:1: agrees to no version"):
        client.advance(with_size(write_response(ApiKey.API_VERSIONS, 0, 1, refusal)))


def test_another_error_of_api_versions_is_named() -> None:
    client = node()
    client.start()
    refusal = api_versions(code=ErrorCode.INVALID_REQUEST)
    with pytest.raises(KafkaUnavailableError, match="broker b:1: ApiVersions: INVALID_REQUEST"):
        client.advance(with_size(write_response(ApiKey.API_VERSIONS, 4, 0, refusal)))


@pytest.mark.parametrize(
    ("mechanism", "answers", "kind", "message"),
    [
        ("PLAIN", (handshake_answer(ErrorCode.UNSUPPORTED_SASL_MECHANISM),), ConfigurationError, "offers PLAIN, SCRAM"),
        (
            "PLAIN",
            (APIS[ApiKey.SASL_HANDSHAKE].response(error_code=int(ErrorCode.ILLEGAL_SASL_STATE), mechanisms=[]),),
            ConfigurationError,
            "broker b:1: there is no SASL at this listener; see security.protocol",
        ),
        (
            "PLAIN",
            (handshake_answer(), sasl_answer(code=ErrorCode.SASL_AUTHENTICATION_FAILED, reason="who?")),
            ConfigurationError,
            "sasl.username and sasl.password: broker b:1: who?",
        ),
        (
            "PLAIN",
            (handshake_answer(), sasl_answer(code=ErrorCode.SASL_AUTHENTICATION_FAILED)),
            ConfigurationError,
            "SASL_AUTHENTICATION_FAILED",
        ),
        (
            "PLAIN",
            (handshake_answer(), sasl_answer(code=ErrorCode.REQUEST_TIMED_OUT)),
            KafkaUnavailableError,
            "broker b:1: SASL PLAIN: REQUEST_TIMED_OUT",
        ),
        ("PLAIN", (handshake_answer(), sasl_answer(b"surprise")), ConfigurationError, "SASL PLAIN: "),
        ("SCRAM-SHA-256", (handshake_answer(), sasl_answer(b"i=1,s=eA==")), ConfigurationError, "answer without 'r'"),
        (
            "SCRAM-SHA-256",
            (handshake_answer(), ScramServer("p", "sha256").first, sasl_answer(b"v=AAAA")),
            ConfigurationError,
            "SASL SCRAM-SHA-256: ",
        ),
    ],
)
def test_every_step_of_sasl_can_be_refused(
    mechanism: str, answers: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        opened(node(mechanism), AnsweringBroker(*answers))
    assert message in str(caught.value)


def test_a_wrong_password_is_not_proved() -> None:
    server = ScramServer("p", "sha256")
    with pytest.raises(ConfigurationError, match="invalid credentials"):
        opened(node("SCRAM-SHA-256", "wrong"), AnsweringBroker(handshake_answer(), server.first, server.final))
    assert not server.authenticated


def test_scram_escapes_special_characters_in_a_user_name() -> None:
    first = make_mechanism(SaslSettings("SCRAM-SHA-256", "a=b,c", "p")).next_message()
    assert first.startswith(b"n,,n=a=3Db=2Cc,r=")


@pytest.mark.parametrize(
    ("version", "kind", "said"),
    [
        (None, ConfigurationError, "^broker b:1: there is no SASL at this listener; see security.protocol$"),
        (0, KafkaUnavailableError, "SASL_HANDSHAKE: the broker offers versions 0 to 0"),
    ],
)
def test_a_broker_without_sasl_is_reported_at_once(version: int | None, kind: type[Exception], said: str) -> None:
    client = node("PLAIN")
    client.start()
    response = APIS[ApiKey.API_VERSIONS].response
    keys = [] if version is None else [response.ApiVersion(api_key=17, min_version=0, max_version=version)]
    answer = response(error_code=0, api_keys=keys, throttle_time_ms=0)
    with pytest.raises(kind, match=said):
        client.advance(with_size(write_response(ApiKey.API_VERSIONS, 4, 0, answer)))


def test_a_listener_that_answers_with_tls_is_recognised() -> None:
    alert = bytes.fromhex("15030300020228")
    client = node(None)
    client.start()
    with pytest.raises(ConfigurationError, match=r"^broker b:1: this listener uses TLS; see security\.protocol$"):
        client.advance(alert)


def test_answers_come_back_in_order_with_their_tags_wherever_the_bytes_are_split() -> None:
    broker = AnsweringBroker(echo, echo, echo)
    client = opened(node(), broker)
    stream = broker.answer(b"".join(client.send(tag, ApiKey.END_TXN, 5, end_txn(tag)) for tag in (70, 80, 90)))
    for cut in range(len(stream) + 1):
        client = opened(node(), AnsweringBroker())
        for tag in (70, 80, 90):
            client.send(tag, ApiKey.END_TXN, 5, end_txn(tag))
        assert client.unanswered == 3
        answers = client.receive(stream[:cut]) + client.receive(stream[cut:])
        assert [(answer.tag, answer.message.producer_id) for answer in answers] == [(70, 70), (80, 80), (90, 90)]
        assert client.unanswered == 0


def test_answers_arriving_byte_by_byte_come_out_one_by_one() -> None:
    broker = AnsweringBroker(echo, echo)
    client = opened(node(), broker)
    stream = broker.answer(b"".join(client.send(tag, ApiKey.END_TXN, 5, end_txn(tag)) for tag in (7, 8)))
    batches = [answers for piece in bytewise(stream) if (answers := client.receive(piece))]
    assert [[answer.tag for answer in answers] for answers in batches] == [[7], [8]]
    assert isinstance(batches[0][0], Response)


def test_requests_sent_after_answers_keep_their_own_tags() -> None:
    broker = AnsweringBroker(echo, echo, echo)
    client = opened(node(), broker)
    for tag in (3, 1, 2):
        (answer,) = client.receive(broker.answer(client.send(tag, ApiKey.END_TXN, 5, end_txn(tag))))
        assert (answer.tag, answer.message.producer_id) == (tag, tag)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (with_size(b"\0\0\0\x63"), "not asked for"),
        (with_size(b""), "without a correlation id"),
        (with_size(b"\0\0\0\x01"), "response header"),
        (with_size(b"\0\0\0\x01\0\0"), "EndTxnResponse"),
        (b"\x7f\xff\xff\xff", "frame of 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame of 1213486160 bytes"),
    ],
)
def test_bytes_that_are_no_answer_are_an_error_that_names_the_broker(stream: bytes, reason: str) -> None:
    client = opened(node(), AnsweringBroker())
    client.send(7, ApiKey.END_TXN, 5, end_txn())
    with pytest.raises(KafkaUnavailableError, match=f"broker b:1: .*{reason}"):
        client.receive(stream)


def test_an_unsolicited_answer_in_the_opening_is_an_error() -> None:
    client = node()
    twice = AnsweringBroker().answer(client.start()) * 2
    with pytest.raises(KafkaUnavailableError, match="not asked for"):
        client.advance(twice)


@given(st.binary(max_size=60), st.integers(0, 3))
def test_any_bytes_give_answers_or_kafka_unavailable_error(garbage: bytes, intact: int) -> None:
    broker = AnsweringBroker(*[echo] * 3)
    client = opened(node(), broker)
    stream = broker.answer(b"".join(client.send(tag, ApiKey.END_TXN, 5, end_txn(tag)) for tag in range(3)))
    whole = len(stream) // 3 * intact
    try:
        answers = client.receive(stream[:whole] + garbage)
    except KafkaUnavailableError:
        return
    assert [answer.tag for answer in answers[:intact]] == list(range(intact))


@given(st.binary(max_size=80))
def test_any_bytes_in_the_opening_raise_a_documented_error_only(garbage: bytes) -> None:
    client = node("PLAIN")
    client.start()
    try:
        client.advance(garbage)
    except (KafkaUnavailableError, ConfigurationError):
        assert not client.is_open


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_answer_in_the_opening_is_an_error_or_harmless(position: int, value: int) -> None:
    client = node("PLAIN")
    answer = bytearray(AnsweringBroker(*ANSWERS["PLAIN"]).answer(client.start()))
    answer[position % len(answer)] = value
    try:
        client.advance(bytes(answer))
    except (KafkaUnavailableError, ConfigurationError):
        assert not client.is_open
