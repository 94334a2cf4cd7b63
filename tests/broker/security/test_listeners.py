"""A broker with several listeners: each tells its clients its own address, and an open one needs a word."""

import socket
from pathlib import Path

import pytest

from dualwrite.cli.main import main
from dualwrite.errors import ConfigurationError
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.admin_calls import BROKER, config
from tests.support.requests.calls import batch, metadata, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient

TWO = {
    "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "advertised.listeners": "OUTSIDE://kafka.example:19092",
}


def test_a_client_gets_the_address_of_the_listener_that_it_used(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path, config=TWO) as broker:
        inside, outside = broker.listeners["INSIDE"], broker.listeners["OUTSIDE"]
        assert broker.bootstrap_servers == inside
        with RawClient(inside) as near, RawClient(outside) as far:
            (node,) = metadata(near).brokers
            assert f"{node.host}:{node.port}" == inside
            (node,) = metadata(far).brokers
            assert (node.host, node.port) == ("kafka.example", 19092)
            topic = new_topic(near)
            assert produce(far, topic, batch([b"v"])).error_code == ErrorCode.NONE
            assert read_all(near, topic) == [b"v"]


def test_the_ready_file_and_the_log_name_every_listener(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path, config=TWO) as broker:
        listening = ", ".join(f"{name}://{address}" for name, address in broker.listeners.items())
        assert f"listening on {listening}" in (tmp_path / "broker.log").read_text()


def test_a_listener_of_ipv6_and_one_of_ipv4_share_a_port(tmp_path: Path) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    listeners = f"PLAINTEXT://127.0.0.1:{port},SIX://[::1]:{port}"
    settings = {"listeners": listeners, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT"}
    with ForkedBroker(tmp_path, config=settings) as broker, RawClient(broker.listeners["SIX"]) as client:
        (node,) = metadata(client).brokers
        assert (node.host, node.port) == ("::1", port)


def test_the_second_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = {**TWO, "listeners": f"INSIDE://127.0.0.1:0,OUTSIDE://{address}"}
        with pytest.raises(ConfigurationError, match=f"cannot listen on {address}: Address already in use"):
            ForkedBroker(tmp_path, config=settings).start()


# --- open to other machines


OPEN = {"listeners": "PLAINTEXT://0.0.0.0:0", "advertised.listeners": "PLAINTEXT://127.0.0.1:1"}


def test_an_open_listener_without_authentication_needs_allow_anonymous(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"other machines reach it, and PLAINTEXT authenticates no client"):
        ForkedBroker(tmp_path, config=OPEN).start()
    with ForkedBroker(tmp_path, config=OPEN, allow_anonymous=True) as broker:
        port = broker.bootstrap_servers.rpartition(":")[2]
        with RawClient(f"127.0.0.1:{port}") as client:
            assert metadata(client).cluster_id


def test_a_host_name_with_an_open_address_needs_allow_anonymous(tmp_path: Path) -> None:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        pytest.skip("this machine's name has no address")
    if address.startswith("127."):
        pytest.skip("this machine's name is one of loopback")
    with pytest.raises(ConfigurationError, match="other machines reach it"):
        ForkedBroker(tmp_path, listen=f"{name}:0").start()


# --- settings in a file


def test_settings_come_from_a_file_and_the_command_line_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# Kafka's\nnum.partitions = 0\nlog.retention.hours: 0\n")
    arguments = ["broker", "--data-dir", str(tmp_path / "data"), "--config-file", str(file)]
    assert main([*arguments, "--config", "num.partitions=2"]) == 2
    assert "log.retention.hours=0" in capsys.readouterr().err
    assert main([*arguments, "--config", "log.retention.hours=1"]) == 2
    assert "num.partitions=0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a=1\na=2", "line 2: a is given twice"),
        (b"a=\\u1", "line 1: expected four hexadecimal digits"),
        (b"\xff", "it is not text in UTF-8"),
    ],
)
def test_a_mistake_in_the_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(content)
    assert main(["broker", "--data-dir", str(tmp_path / "data"), "--config-file", str(file)]) == 2
    assert f"config file {file}: {why}" in capsys.readouterr().err


def test_an_embedded_brokers_settings_are_on_no_command_line(tmp_path: Path) -> None:
    value = "PLAINTEXT://a-host-that-only-the-file-names:1"
    with ForkedBroker(tmp_path, config={"advertised.listeners": value}) as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        with RawClient(broker.bootstrap_servers) as client:
            assert config(client, BROKER, "0", "advertised.listeners")[0] == value
    assert b"only-the-file" not in command
