"""Bytes that are not a request: the sender loses its connection, and other clients are not affected."""

import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualwrite.broker.api.routes import ROUTES
from dualwrite.broker.connection import MOST_BYTES_WITHOUT_RECORDS
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import (
    APIS,
    AddPartitionsToTxnRequest,
    ApiKey,
    CreateTopicsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    Message,
    ProduceRequest,
)
from dualwrite.wire.codec import write_request
from dualwrite.wire.frames import with_size
from tests.support.broker.broker_process import memory_peak
from tests.support.requests.calls import (
    batch,
    end,
    fetch_request,
    identity,
    init,
    metadata,
    new_producer,
    new_topic,
    ongoing,
    open_transaction,
    produce,
    produce_request,
    read_all,
    topic_id,
    wanted_topic,
)
from tests.support.requests.raw_client import RawClient
from tests.support.strategies import messages

EVERY_API = [(key, version) for key, route in ROUTES.items() for version in route.versions]
BODILESS = [(key, version) for key in (ApiKey.API_VERSIONS, ApiKey.LIST_GROUPS) for version in range(3)]
HUGE = 2**31 - 1


class Bystander:
    """A client with data of its own, which must not notice anything."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.pid = broker.pid
        self.written = [b"first"]
        with RawClient(broker.bootstrap_servers) as client:
            self.topic = new_topic(client, partitions=2)
            produce(client, self.topic, batch(self.written))
            self.producer = new_producer(client, "bystander", two_phase=True)
            open_transaction(client, "bystander", self.producer, {(self.topic, 1): [b"prepared"]})

    def is_served(self) -> None:
        """Writing and reading go on, in the same process."""
        assert self.broker.pid == self.pid
        with RawClient(self.broker.bootstrap_servers) as client:
            self.written.append(b"%d" % len(self.written))
            assert produce(client, self.topic, batch(self.written[-1:])).base_offset == len(self.written) - 1
            assert read_all(client, self.topic) == self.written
            assert read_all(client, self.topic, 1) == []
            assert read_all(client, self.topic, 1, committed=False) == [b"prepared"]

    def finds_everything_after_a_restart(self) -> None:
        """Nothing that was sent has left anything half-written."""
        self.broker.kill()
        self.pid = self.broker.start().pid
        self.is_served()
        with RawClient(self.broker.bootstrap_servers) as client:
            answer = init(client, "bystander", two_phase=True, keep=True)
            assert ongoing(answer) == self.producer
            end(client, "bystander", identity(answer))
            assert read_all(client, self.topic, 1) == [b"prepared"]


@pytest.fixture(scope="module")
def bystander(shared_broker: EmbeddedBroker) -> Iterator[Bystander]:
    """On the broker of all tests of this module; looked after again when they are over, and after a restart."""
    watching = Bystander(shared_broker)
    yield watching
    watching.is_served()
    watching.finds_everything_after_a_restart()


def closed_by(broker: EmbeddedBroker, *parts: bytes) -> bytes:
    """What the broker sends before it closes the connection on which it got ``parts``."""
    with RawClient(broker.bootstrap_servers) as client:
        for part in parts:
            client.send_bytes(part)
        return client.read_to_end()


def head(key: int, version: int, client_id: bytes | None = b"raw") -> bytes:
    """A request's header: with the empty tags of a flexible one, which an older one takes for the body's first byte."""
    name = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
    return struct.pack(">hhi", key, version, 1) + name + b"\x00"


# --- frames


NO_REQUESTS = {
    "an empty frame": with_size(b""),
    "one byte": with_size(b"\x00"),
    "half a header": with_size(head(18, 0)[:6]),
    "a negative size": struct.pack(">i", -1),
    "the most negative size": struct.pack(">i", -(2**31)),
    "a huge size": struct.pack(">i", HUGE),
    "one byte over the limit": struct.pack(">i", 104857601),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "a TLS handshake": bytes.fromhex("16030100c8010000c40303"),
    "an unknown API": with_size(head(999, 0)),
    "a negative API": with_size(head(-1, 0)),
    "an API that is not served": with_size(head(ApiKey.SASL_HANDSHAKE, 0)),
    "a negative version": with_size(head(ApiKey.METADATA, -1)),
    "the most negative version": with_size(head(ApiKey.API_VERSIONS, -(2**15)))[:-1],
    "a client id that runs out": with_size(head(ApiKey.METADATA, 1)[:8] + struct.pack(">h", 3000) + b"short"),
    "a client id that is no text": with_size(head(ApiKey.METADATA, 1, b"\xff\xfe")),
    "tags without an end": with_size(struct.pack(">hhih", ApiKey.METADATA, 12, 1, -1) + b"\xff" * 100),
}


@pytest.mark.parametrize("data", NO_REQUESTS.values(), ids=NO_REQUESTS.keys())
def test_bytes_that_are_not_a_request_end_the_connection(bystander: Bystander, data: bytes) -> None:
    with RawClient(bystander.broker.bootstrap_servers) as client:
        client.send_bytes(data)
        client.send_end()
        client.read_to_end()
    bystander.is_served()


@pytest.mark.parametrize(("key", "version"), [call for call in EVERY_API if call not in BODILESS])
def test_a_request_without_its_body_ends_its_connection(bystander: Bystander, key: ApiKey, version: int) -> None:
    assert closed_by(bystander.broker, with_size(head(key, version)[: -1 if version == 0 else None])) == b""


def test_requests_before_the_broken_one_are_answered(bystander: Bystander) -> None:
    good = with_size(write_request(ApiKey.API_VERSIONS, 0, 7, "raw", APIS[ApiKey.API_VERSIONS].request()))
    answered = closed_by(bystander.broker, good + good + with_size(b"rubbish") + good)
    size = struct.unpack_from(">i", answered)[0]
    assert len(answered) == 2 * (4 + size)


def test_half_a_request_and_a_hang_up_leave_nothing(bystander: Bystander) -> None:
    with RawClient(bystander.broker.bootstrap_servers) as client:
        topic = new_topic(client)
    whole = with_size(write_request(ApiKey.PRODUCE, 9, 1, "raw", produce_request({(topic, 0): batch([b"v"])})))
    for length in range(0, len(whole), 7):
        with RawClient(bystander.broker.bootstrap_servers) as client:
            client.send_bytes(whole[:length])
    with RawClient(bystander.broker.bootstrap_servers) as client:
        assert read_all(client, topic, committed=False) == []
    bystander.is_served()


def test_a_request_may_arrive_byte_by_byte(bystander: Bystander) -> None:
    whole = with_size(write_request(ApiKey.API_VERSIONS, 0, 7, "raw", APIS[ApiKey.API_VERSIONS].request()))
    with RawClient(bystander.broker.bootstrap_servers) as client:
        for position in range(len(whole)):
            client.send_bytes(whole[position : position + 1])
        assert client.receive_frame()[:4] == struct.pack(">i", 7)


def test_a_hundred_half_requests_do_not_block_other_clients(bystander: Bystander) -> None:
    waiting = [RawClient(bystander.broker.bootstrap_servers) for _ in range(100)]
    for client in waiting:
        client.send_bytes(struct.pack(">i", 50_000_000) + head(ApiKey.PRODUCE, 9))
    bystander.is_served()
    for client in waiting:
        client.close()


# --- bodies


def announcements(version: int, key: ApiKey) -> Iterator[bytes]:
    """Bodies of a kilobyte that announce arrays and strings of all the memory there is."""
    for prefix in range(24):
        for count in (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\x7f"):
            body = bytes(prefix) + count * (1000 // len(count))
            yield with_size(head(key, version, None)[:-1] + body)
            yield with_size(head(key, version, None) + body)


@pytest.mark.slow_cases
@pytest.mark.parametrize("key", list(ROUTES))
def test_a_kilobyte_that_announces_gigabytes_allocates_nothing(bystander: Bystander, key: ApiKey) -> None:
    before = memory_peak(bystander.broker.pid)
    versions = ROUTES[key].versions
    for version in {versions[0], versions[len(versions) // 2], versions[-1]}:
        for frame in announcements(version, key):
            answered_or_closed(bystander.broker, frame)
    bystander.is_served()
    assert memory_peak(bystander.broker.pid) - before < 32 * 1024 * 1024


def test_a_number_without_an_end_takes_no_time(bystander: Bystander) -> None:
    """Read as they come, the bits of a megabyte of 0xff would take minutes, and every client would wait."""
    began_at = time.monotonic()
    for key, version in [(ApiKey.METADATA, 12), (ApiKey.PRODUCE, 12), (ApiKey.CREATE_TOPICS, 7)]:
        assert closed_by(bystander.broker, with_size(head(key, version) + b"\xff" * 1_000_000)) == b""
    bystander.is_served()
    assert time.monotonic() - began_at < 10


def test_a_request_without_records_has_a_limit_of_its_own(bystander: Bystander) -> None:
    body = bytes(MOST_BYTES_WITHOUT_RECORDS)  # well-formed: no topics, and superfluous bytes
    assert closed_by(bystander.broker, with_size(head(ApiKey.METADATA, 9) + body)) == b""
    bystander.is_served()


def with_nulls() -> Iterator[tuple[str, Message, int]]:
    """Requests whose schema allows what they lack in no version."""
    yield "topics", CreateTopicsRequest(topics=None, timeout_ms=1), 7
    yield "a topic's name", CreateTopicsRequest(topics=[wanted_topic(None)], timeout_ms=1), 5  # type: ignore[arg-type]
    yield "a topic's settings", CreateTopicsRequest(topics=[wanted_topic("t", configs=None)], timeout_ms=1), 7
    yield "an id to end", EndTxnRequest(transactional_id=None, producer_id=1, producer_epoch=0, committed=True), 3
    yield "an id to add to", AddPartitionsToTxnRequest(v3_and_below_transactional_id=None, v3_and_below_topics=[]), 3
    yield "partitions", AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=None), 3
    yield "records' topics", ProduceRequest(transactional_id=None, acks=1, timeout_ms=1, topic_data=None), 9
    yield "offsets' topics", ListOffsetsRequest(topics=None), 5


@pytest.mark.parametrize(
    ("request_", "version"), [case[1:] for case in with_nulls()], ids=[case[0] for case in with_nulls()]
)
def test_null_where_the_schema_has_none_ends_the_connection(
    bystander: Bystander, request_: Message, version: int
) -> None:
    with RawClient(bystander.broker.bootstrap_servers) as client:
        client.send(request_, version)
        assert client.read_to_end() == b""
    bystander.is_served()


def test_a_reader_that_never_reads_is_not_kept_in_memory(bystander: Bystander) -> None:
    with RawClient(bystander.broker.bootstrap_servers) as client:
        topic = new_topic(client)
        for _ in range(8):
            produce(client, topic, batch([b"x" * 1_000_000]))
        before = memory_peak(bystander.broker.pid)
        with RawClient(bystander.broker.bootstrap_servers) as lazy:
            for _ in range(100):
                lazy.send(fetch_request(topic, partition_max_bytes=1 << 24), 12)
            for _ in range(20):
                bystander.is_served()
        assert memory_peak(bystander.broker.pid) - before < 100 * 1024 * 1024


# --- fuzz, seeded


def answered_or_closed(broker: EmbeddedBroker, frame: bytes) -> bool:
    """Send ``frame`` and go on once the broker has done something about it, or takes its time over it; True if it has
    answered."""
    with RawClient(broker.bootstrap_servers) as client:
        client.send_bytes(frame)
        client.send_end()
        client.give_up_after(0.3)  # such as a long poll, which is a legal answer to a fetch
        try:
            return client.read_to_end() != b""
        except TimeoutError:
            return False


def sound_requests(client: RawClient) -> list[tuple[ApiKey, int, bytes]]:
    """A request of each kind that touches nothing of the bystander's."""
    topic = new_topic(client, partitions=2)
    producer = new_producer(client, "fuzzed")
    partition = {(topic, 0): batch([b"fuzzed"], producer, 0)}
    by_id = topic_id(client, topic)
    add = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    added = add(
        transactional_id="fuzzed",
        producer_id=producer.producer_id,
        producer_epoch=0,
        verify_only=False,
        topics=[add.AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
    )
    fuzzed = ProducerIdentity(producer.producer_id, 0)
    found: list[tuple[Message, int]] = [
        (produce_request(partition), 9),
        (produce_request(partition, ids={topic: by_id}), 13),
        (produce_request({(topic, 1): batch([b"t"], fuzzed, 0)}, "fuzzed"), 12),
        (fetch_request(topic), 12),
        (fetch_request(topic, by_id=by_id), 18),
        (CreateTopicsRequest(topics=[wanted_topic("fuzz")], timeout_ms=1, validate_only=True), 7),
        (InitProducerIdRequest(transactional_id="fuzzed", transaction_timeout_ms=1000), 6),
        (AddPartitionsToTxnRequest(transactions=[added]), 5),
        (EndTxnRequest(transactional_id="fuzzed", producer_id=fuzzed.producer_id, producer_epoch=0, committed=True), 5),
    ]
    return [(key, version, write_request(key, version, 1, "raw", message)) for message, version, key in named(found)]


def named(requests: list[tuple[Message, int]]) -> Iterator[tuple[Message, int, ApiKey]]:
    keys = {api.request: key for key, api in APIS.items()}
    return ((message, version, keys[type(message)]) for message, version in requests)


def damaged(frame: bytes, chance: random.Random) -> bytes:
    """``frame`` with something done to it that its sender did not mean."""
    data = bytearray(frame)
    for _ in range(chance.choice([1, 1, 2, 5])):
        position = chance.randrange(4, max(5, len(data)))  # the API and the version stay
        damage = chance.randrange(5)
        if damage == 0:
            data[position : position + 1] = chance.randbytes(1)
        elif damage == 1:
            del data[position : position + chance.randrange(1, 9)]
        elif damage == 2:
            data[position:position] = chance.randbytes(chance.randrange(1, 9))
        elif damage == 3:
            data[position : position + 4] = struct.pack(">i", chance.choice([-1, -2, 0, HUGE, -(2**31), 65536]))
        else:
            del data[position:]
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_requests_harm_no_other_client(bystander: Bystander, seed: int) -> None:
    chance = random.Random(seed)
    with RawClient(bystander.broker.bootstrap_servers) as client:
        frames = [frame for _, _, frame in sound_requests(client)]
    sent = (with_size(damaged(chance.choice(frames), chance)) for _ in range(150))
    answered = [answered_or_closed(bystander.broker, frame) for frame in sent]
    assert 10 < sum(answered) < 140, "some were still requests, and some were not"
    bystander.is_served()


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_harm_no_other_client(bystander: Bystander, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        noise = chance.randbytes(chance.randrange(400))
        key, version = chance.choice(EVERY_API)
        frame = chance.choice([noise, with_size(noise), with_size(head(key, version) + noise)])
        answered_or_closed(bystander.broker, frame)
    bystander.is_served()


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_well_formed_requests_with_senseless_values_harm_no_other_client(
    bystander: Bystander, data: st.DataObject
) -> None:
    key, version = data.draw(st.sampled_from(EVERY_API))
    request = data.draw(messages(APIS[key].request, version))
    if key is ApiKey.FETCH:
        request.max_wait_ms = 0
    if key is ApiKey.CREATE_TOPICS:
        for topic in request.topics:
            topic.num_partitions = min(topic.num_partitions, 3)
    frame = with_size(write_request(key, version, 1, "raw", request))
    answered_or_closed(bystander.broker, frame)
    with RawClient(bystander.broker.bootstrap_servers) as client:
        assert metadata(client).cluster_id


def test_reset_connections_harm_no_other_client(bystander: Bystander) -> None:
    host, _, port = bystander.broker.bootstrap_servers.rpartition(":")
    frame = with_size(write_request(ApiKey.METADATA, 1, 1, "raw", APIS[ApiKey.METADATA].request(topics=None)))
    for count in range(50):
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(frame * count)
    bystander.is_served()
