"""The tap drops the chosen messages at the chosen moment, and sees what is sent again."""

import socket
import threading
from collections.abc import Iterator

import pytest

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import (
    APIS,
    ApiKey,
    EndTxnResponse,
    Message,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from dualwrite.wire.codec import read_body, read_request_head, write_response
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import with_size
from tests.support.crash.wire_tap import Asked, Fault, Lost, NotStruckError, Tap, nothing
from tests.support.requests.calls import end, produce, tx_batch
from tests.support.requests.raw_client import RawClient

NODE = 7
PRODUCER = ProducerIdentity(5, 0)
ALL_LOSSES = pytest.mark.parametrize("lost", Lost)


class FakeNode:
    """Carries out every EndTxn and Produce, one connection after another."""

    def __init__(self) -> None:
        self.carried_out: list[Message] = []
        self.error = ErrorCode.NONE
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End with the last connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as frames:
                while size := frames.read(4):
                    connection.sendall(self._answer(frames.read(int.from_bytes(size, "big"))))

    def _answer(self, frame: bytes) -> bytes:
        head, position = read_request_head(frame)
        api = ApiKey(head.api_key)
        request = read_body(APIS[api].request, head.version, frame, position)
        self.carried_out.append(request)
        if api is ApiKey.TXN_OFFSET_COMMIT:
            answer = offsets_answer(self.error)
        elif api is ApiKey.END_TXN:
            answer = EndTxnResponse(error_code=self.error, producer_id=5, producer_epoch=1)
        else:
            topic = ProduceResponse.TopicProduceResponse
            entry = topic.PartitionProduceResponse(index=0, error_code=self.error, base_offset=0)
            answer = ProduceResponse(responses=[topic(name="t", partition_responses=[entry])])
        return with_size(write_response(api, head.version, head.correlation_id, answer))


def offsets_answer(code: ErrorCode) -> Message:
    topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    entry = topic.TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=[topic(name="t", partitions=[entry])])


def send_offset(client: RawClient, metadata: str) -> Message:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    entry = topic.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=metadata)
    identity = {"producer_id": PRODUCER.producer_id, "producer_epoch": PRODUCER.epoch}
    request = TxnOffsetCommitRequest(
        transactional_id="id", group_id="g", topics=[topic(name="t", partitions=[entry])], **identity
    )
    return client.ask(request, 5)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    fake = FakeNode()
    yield fake
    fake.close()


@pytest.fixture
def tap(node: FakeNode) -> Iterator[Tap]:
    with Tap(NODE).start({NODE: node.port}) as running:
        yield running


@pytest.fixture
def client(tap: Tap) -> Iterator[RawClient]:
    with RawClient(f"127.0.0.1:{tap.ports[NODE]}") as connected:
        yield connected


def again(tap: Tap) -> RawClient:
    return RawClient(f"127.0.0.1:{tap.ports[NODE]}")


def test_the_tap_passes_on_requests_that_it_was_not_asked_to_lose(tap: Tap, client: RawClient, node: FakeNode) -> None:
    for _ in range(2):
        assert end(client, "id", PRODUCER).error_code == ErrorCode.NONE
    assert len(node.carried_out) == 2
    assert not +tap.repeated, "each had its answer"


@ALL_LOSSES
def test_a_request_is_lost_before_it_is_carried_out_and_an_answer_after(
    tap: Tap, client: RawClient, node: FakeNode, lost: Lost
) -> None:
    seen: list[Asked] = []
    fault = tap.arm(Fault(ApiKey.END_TXN, lost, "id", seen.append))
    with pytest.raises(ConnectionError):
        end(client, "id", PRODUCER)
    assert fault.wait() is seen[0]
    assert seen[0].node == NODE
    assert len(node.carried_out) == (lost is Lost.ANSWER)
    with again(tap) as other:
        assert end(other, "id", PRODUCER).error_code == ErrorCode.NONE, "it strikes once"
    assert tap.repeated["id", ApiKey.END_TXN] == 1


@ALL_LOSSES
def test_a_batch_that_comes_again_is_known_by_its_sequence(tap: Tap, client: RawClient, lost: Lost) -> None:
    tap.arm(Fault(ApiKey.PRODUCE, lost, "id", nothing))
    with pytest.raises(ConnectionError):
        produce(client, "t", tx_batch([b"v"], PRODUCER), "id", version=12)
    with again(tap) as other:
        produce(other, "t", tx_batch([b"v"], PRODUCER), "id", version=12)
        produce(other, "t", tx_batch([b"v"], PRODUCER, 1), "id", version=12)
    assert tap.repeated["id", ApiKey.PRODUCE] == 1


@ALL_LOSSES
def test_an_offset_that_comes_again_is_known_by_its_metadata(tap: Tap, client: RawClient, lost: Lost) -> None:
    tap.arm(Fault(ApiKey.TXN_OFFSET_COMMIT, lost, "id", nothing))
    with pytest.raises(ConnectionError):
        send_offset(client, "one")
    with again(tap) as other:
        send_offset(other, "one")
        send_offset(other, "two")
    assert tap.repeated["id", ApiKey.TXN_OFFSET_COMMIT] == 1


def test_offsets_that_were_refused_are_no_success(tap: Tap, client: RawClient, node: FakeNode) -> None:
    fault = tap.arm(Fault(ApiKey.TXN_OFFSET_COMMIT, Lost.ANSWER, "id", nothing))
    node.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    send_offset(client, "one")
    assert not fault.struck.done()


def test_only_the_answer_to_what_succeeded_is_lost(tap: Tap, client: RawClient, node: FakeNode) -> None:
    tap.arm(Fault(ApiKey.END_TXN, Lost.ANSWER, "id", nothing))
    node.error = ErrorCode.CONCURRENT_TRANSACTIONS
    assert end(client, "id", PRODUCER).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    node.error = ErrorCode.NONE
    with pytest.raises(ConnectionError):
        end(client, "id", PRODUCER)
    assert tap.repeated["id", ApiKey.END_TXN] == 1


def test_other_clients_lose_nothing(tap: Tap, client: RawClient) -> None:
    fault = tap.arm(Fault(ApiKey.END_TXN, Lost.REQUEST, "id", nothing))
    assert end(client, "another id", PRODUCER).error_code == ErrorCode.NONE
    assert not fault.struck.done()


def test_an_error_of_the_cluster_action_is_raised_in_the_test(tap: Tap, client: RawClient) -> None:
    def fail(asked: Asked) -> None:
        raise ValueError("the node would not die")

    fault = tap.arm(Fault(ApiKey.END_TXN, Lost.REQUEST, "id", fail))
    with pytest.raises(ConnectionError):
        end(client, "id", PRODUCER)
    with pytest.raises(ValueError, match="would not die"):
        fault.wait()


def test_a_node_that_is_dead_is_a_connection_that_ends() -> None:
    with Tap(NODE).start({NODE: 1}) as tap, again(tap) as client, pytest.raises(ConnectionError):
        end(client, "id", PRODUCER)


def test_an_abort_is_not_lost(tap: Tap, client: RawClient) -> None:
    fault = tap.arm(Fault(ApiKey.END_TXN, Lost.REQUEST, "id", nothing))
    assert end(client, "id", PRODUCER, commit=False).error_code == ErrorCode.NONE
    assert not fault.struck.done()


def test_a_fault_that_was_given_up_loses_nothing(tap: Tap, client: RawClient) -> None:
    fault = tap.arm(Fault(ApiKey.END_TXN, Lost.REQUEST, "id", nothing))
    with pytest.raises(NotStruckError):
        fault.wait(patience=0)
    later = tap.arm(Fault(ApiKey.END_TXN, Lost.ANSWER, "id", nothing))
    with pytest.raises(ConnectionError):
        end(client, "id", PRODUCER)
    assert later.wait().api is ApiKey.END_TXN, "nor does it keep the next one from being lost"
