"""Clients that go while their request waits, or while it is carried out: they hold no connection, and tear nothing."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dualwrite.broker.api.records import fetch
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import ApiKey, ApiVersionsRequest, Message
from dualwrite.wire.codec import write_request
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import with_size
from tests.support.broker.in_process import InProcessBroker
from tests.support.broker.simulated import TOPIC, Rooms, run
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, fetch_request, metadata, new_topic, produce, produce_request, read_all
from tests.support.requests.group_calls import join_request
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

WEEKS_MS = 2**31 - 1
MOST = 40
STRANGERS = "127.0.0.2"
STEPS = 200


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    config = {"max.connections": str(MOST), "group.initial.rebalance.delay.ms": "60000"}
    with ForkedBroker(tmp_path / "data", config=config) as running:
        yield running


def waiting_fetch(topic: str) -> tuple[Message, int]:
    return fetch_request(topic, max_wait_ms=WEEKS_MS, min_bytes=WEEKS_MS), 12


def waiting_join(_: str) -> tuple[Message, int]:
    return join_request("group", rebalance_timeout_ms=WEEKS_MS), 3  # v4 and later are answered with a member id first


def hang_up(client: RawClient) -> None:
    client.close()


def reset(client: RawClient) -> None:
    """Close the connection as a process does that ends with unread data."""
    client.reset()


def send_no_more(client: RawClient) -> None:
    client.send_end()
    answer = client.receive_frame()  # the records that there are, at once
    assert answer
    assert client.read_to_end() == b""
    client.close()


def fill_and_hang_up(client: RawClient) -> None:
    """Leave so many requests behind the one that waits that the broker does not read the end of the connection."""
    frame = with_size(write_request(ApiKey.API_VERSIONS, 3, 2, "x" * 1000, versions_request()))
    with suppress(TimeoutError, ConnectionError):
        client.give_up_after(0.2)
        client.send_bytes(frame * 1000)
    reset(client)


def versions_request() -> Message:
    return ApiVersionsRequest(client_software_name="x", client_software_version="1")


def is_served(client: RawClient) -> bool:
    with suppress(ConnectionError):
        return bool(client.ask(versions_request(), 3).error_code == ErrorCode.NONE)
    return False


@contextmanager
def newcomers(broker: EmbeddedBroker, count: int) -> Iterator[list[RawClient]]:
    """Clients that come at the same time, and that are served or not."""
    with ExitStack() as stack:
        yield [stack.enter_context(RawClient(broker.bootstrap_servers, "127.0.0.3")) for _ in range(count)]


@pytest.mark.slow_cases
@pytest.mark.parametrize("leave", [hang_up, reset, send_no_more, fill_and_hang_up])
@pytest.mark.parametrize("waiting", [waiting_fetch, waiting_join])
def test_clients_that_leave_while_they_wait_hold_no_connection(
    broker: EmbeddedBroker,
    waiting: Callable[[str], tuple[Message, int]],
    leave: Callable[[RawClient], None],
) -> None:
    """The connection of a client that is idle for longest stays open, and new clients are served."""
    with RawClient(broker.bootstrap_servers, "127.0.0.1") as bystander:
        topic = new_topic(bystander)
        for _ in range(MOST // 2 if leave is fill_and_hang_up else MOST + 20):
            client = RawClient(broker.bootstrap_servers, STRANGERS)
            client.send(*waiting(topic))
            leave(client)
        with newcomers(broker, MOST - 5) as clients:
            assert [is_served(client) for client in clients] == [True] * len(clients)
            assert is_served(bystander)


def test_requests_that_wait_make_room_for_new_clients(broker: EmbeddedBroker) -> None:
    with ExitStack() as stack:
        bystander = stack.enter_context(RawClient(broker.bootstrap_servers, "127.0.0.1"))
        topic = new_topic(bystander)
        for number in range(MOST - 1):
            client = stack.enter_context(RawClient(broker.bootstrap_servers, STRANGERS))
            client.send(*(waiting_fetch if number % 2 else waiting_join)(topic))
        with newcomers(broker, 10) as clients:
            assert [is_served(client) for client in clients] == [True] * len(clients)
            assert is_served(bystander)


@pytest.mark.parametrize("size", [50_000, 500_000])
def test_answers_that_are_not_read_hold_connections_that_make_room(broker: EmbeddedBroker, size: int) -> None:
    """The clients have sent the end of their connection, and the broker's end waits for them to read. Most of the
    larger answers do not fit into the system's buffers."""
    with ExitStack() as stack:
        bystander = stack.enter_context(RawClient(broker.bootstrap_servers, "127.0.0.1"))
        topic = new_topic(bystander)
        produce(bystander, topic, batch([b"v" * size]))
        strangers = []
        for index in range(3 * MOST):
            stranger = stack.enter_context(deaf(broker))
            strangers.append(stranger)
            with suppress(ConnectionError):
                for number in range(index % 40):  # of some, the last answer fits into the broker's own buffer
                    request = fetch_request(topic)
                    stranger.sendall(with_size(write_request(ApiKey.FETCH, 12, number, "deaf", request)))
                stranger.shutdown(socket.SHUT_WR)
        assert eventually(lambda: takes_a_client(broker), bool)  # until then, requests of strangers are carried out
        with newcomers(broker, 10) as clients:
            assert [is_served(client) for client in clients] == [True] * len(clients)
        established = eventually(lambda: open_connections(broker), lambda count: count <= MOST + 1)
        assert established <= MOST + 1


def takes_a_client(broker: EmbeddedBroker) -> bool:
    with newcomers(broker, 1) as (client,):
        return is_served(client)


def deaf(broker: EmbeddedBroker) -> socket.socket:
    """A connection that takes few bytes that it does not read."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.bind((STRANGERS, 0))
    client.settimeout(20)
    client.connect((host, int(port)))
    return client


def open_connections(broker: EmbeddedBroker) -> int:
    """How many sockets the broker has."""
    links = []
    for entry in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the broker has closed it meanwhile
            links.append(str(entry.readlink()))
    return sum(link.startswith("socket:") for link in links) - 1  # the listener's


def test_what_a_client_has_produced_is_there_or_not_though_it_left_at_once(tmp_path: Path) -> None:
    """Every request that was received whole is appended whole, once, and a restart finds the same."""
    values = [b"%d" % number for number in range(100)]
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as reader:
        topic = new_topic(reader)
        for number, value in enumerate(values):
            client = RawClient(broker.bootstrap_servers)
            client.send(produce_request({(topic, 0): batch([value, value])}), 9)
            (reset if number % 2 else hang_up)(client)
        hung_up = [value for value in values[::2] for _ in range(2)]
        found = eventually(lambda: read_all(reader, topic), lambda there: set(there) >= set(hung_up))
        assert [value for value in found if value in hung_up] == hung_up
        assert len(found) == 2 * len(set(found))
        assert is_served(reader)
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as again:
            there = read_all(again, topic)
        assert there[: len(found)] == found
        assert len(there) == 2 * len(set(there)), "a request that was received later is there whole, too"


def test_a_member_whose_client_left_stays_in_its_group_until_its_session_ends() -> None:
    async def scenario() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        broker = InProcessBroker(rooms)
        for instance in ("a", "b"):
            client = broker.connect("10.0.0.1")
            request = join_request("g", instance_id=instance, session_timeout_ms=10_000)
            client.send(with_size(write_request(ApiKey.JOIN_GROUP, 5, 1, "x", request)))
            await steps()
            client.abort()
            await asyncio.wait([client.serving], timeout=5)
            assert client.serving.done()
            await client.serving
        group = rooms.groups.group("g")
        assert group is not None
        assert (group.state, len(group.members)) == (GroupState.PREPARING_REBALANCE, 2)
        rooms.clock.pass_ms(120_000)
        await steps()
        group = rooms.groups.group("g")
        assert group is None or group.state is GroupState.EMPTY
        await broker.close()

    run(scenario())


def test_a_stop_answers_what_waits() -> None:
    async def scenario() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        broker = InProcessBroker(rooms)
        reader = asyncio.ensure_future(broker.connect("10.0.0.1").ask(*waiting_fetch(TOPIC)))
        member = asyncio.ensure_future(broker.connect("10.0.0.2").ask(*waiting_join("")))
        await steps()
        assert not reader.done()
        assert not member.done()
        broker.context.stopping.begin()
        assert (await reader).error_code == ErrorCode.NONE
        assert (await member).error_code == ErrorCode.NOT_COORDINATOR
        await broker.close()

    run(scenario())


def test_a_fetch_waits_five_minutes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch.LONGEST_WAIT_MS == 300_000
    monkeypatch.setattr(fetch, "LONGEST_WAIT_MS", 0)

    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        answer = await broker.connect("10.0.0.1").ask(*waiting_fetch(TOPIC))
        assert answer.error_code == ErrorCode.NONE
        await broker.close()

    run(scenario())


def test_the_system_asks_whether_a_silent_client_is_there(broker: EmbeddedBroker) -> None:
    """A client whose network has gone sends no end of its connection."""
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    with RawClient(broker.bootstrap_servers) as client:
        assert metadata(client).brokers[0].port == port
        ours = client.port
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (timer,) = [
            f[5] for f in lines if (f[1].endswith(f":{port:04X}"), f[2].endswith(f":{ours:04X}")) == (True, True)
        ]
        assert timer.startswith("02:"), "no keepalive timer"


async def steps() -> None:
    for _ in range(STEPS):
        await asyncio.sleep(0)
