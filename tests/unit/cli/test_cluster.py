"""A cluster named on the command line: settings by librdkafka's names, and one line for each mistake."""

import argparse
from pathlib import Path

import pytest

from dualwrite.cli import cluster
from dualwrite.cli.cluster import add_cluster, cluster_config, config_at, reached_cluster, require_cluster
from dualwrite.errors import ConfigurationError, KafkaUnavailableError


def parsed(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_cluster(parser)
    return cluster_config(parser.parse_args(["--bootstrap-servers", "a:1,b:2", *words]))


def test_settings_are_as_they_are_spelt() -> None:
    assert parsed("-X", "client.id=me", "-Xsasl.password=a=b") == {
        "bootstrap.servers": "a:1,b:2",
        "client.id": "me",
        "sasl.password": "a=b",
    }


@pytest.mark.parametrize(
    "content",
    [
        b"# secrets\n\nsasl.username = me\nclient.id=file\n",
        b"\xef\xbb\xbf# secrets\r\n\r\nsasl.username = me\r\nclient.id=file\r\n",
        b"\xef\xbb\xbfsasl.username = me\r\nclient.id=file",
    ],
    ids=["Unix", "Windows", "a mark before the first setting"],
)
def test_a_file_has_one_in_each_line_and_the_command_line_wins(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(content)
    assert parsed("--command-config", str(file), "-X", "client.id=line") == {
        "bootstrap.servers": "a:1,b:2",
        "sasl.username": "me",
        "client.id": "line",
    }


def test_the_command_line_wins_under_the_other_name_of_a_setting_too(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.mechanism=PLAIN\nclient.id=file\n")
    assert parsed("--command-config", str(file), "-X", "sasl.mechanisms=SCRAM-SHA-256") == {
        "bootstrap.servers": "a:1,b:2",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "client.id": "file",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-X", "client.id"], "-X: 'client.id' is not followed by =VALUE"),
        (["-X", "sasl.password hunter2"], "-X: 'sasl.password' is not followed by =VALUE"),
        (["-X", "=x"], "-X: no KEY=VALUE"),
        (["-X", ""], "-X: no KEY=VALUE"),
        (["-X", "bootstrap.servers=a:1"], "-X: bootstrap.servers: use --bootstrap-servers"),
        (["-X", "metadata.broker.list=a:1"], "-X: metadata.broker.list: use --bootstrap-servers"),
        (["-X", "transactional.id=a"], "-X: transactional.id is set by dualwrite itself: remove it"),
        (["-X", "oauth_cb=f"], "-X: oauth_cb is a function, which only Python code can pass"),
        (["-X", "logger=f"], "-X: logger is a function, which only Python code can pass"),
        (
            ["-X", "security.protocl=SSL"],
            "-X: security.protocl: there is no such setting; did you mean security.protocol?",
        ),
        (["-X", "security.protocol=TLS"], "security.protocol 'TLS': use one of"),
        (
            ["-X", "sasl.jaas.config=x hunter2"],
            "-X: sasl.jaas.config is a setting of Java's clients: use sasl",
        ),
        (
            ["-X", "ssl.truststore.type=JKS"],
            "-X: ssl.truststore.type is a setting of Java's clients: use ssl.ca",
        ),
        (["-X", "socket.send.buffer.bytes=99999999999999"], "-X: socket.send.buffer.bytes '99999999999999': allowed: "),
        (["-X", "socket.connection.setup.timeout.ms=0"], "-X: socket.connection.setup.timeout.ms '0': allowed: whole"),
        (["-X", "linger.ms=soon"], "-X: linger.ms 'soon': allowed: 0 to 900000"),
        (["-X", "queue.buffering.max.ms=-1"], "-X: queue.buffering.max.ms '-1': allowed: 0 to 900000"),
        (["-X", f"client.id={'x' * 40_000}"], "client.id of 40,000 characters: use at most 32,767 bytes"),
        (["-X", "security.protocol=SASL_SSL", "-X", "sasl.mechanism=PLAIN"], "sasl.username and sasl.password: PLAIN"),
        (["--command-config", "/no/such/file"], "--command-config /no/such/file: No such file or directory"),
        (["--command-config", "/"], "--command-config /: Is a directory"),
        (["--bootstrap-servers", "nowhere:port"], "bootstrap.servers: 'nowhere:port' is not HOST:PORT"),
    ],
)
def test_an_error_is_one_line_that_names_the_setting(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parsed(*words)
    assert str(raised.value).startswith(message)
    assert "hunter2" not in str(raised.value)


def test_a_file_of_javas_clients_is_told_what_to_write_instead(tmp_path: Path) -> None:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    file = tmp_path / "client.properties"
    file.write_text(f'security.protocol=SASL_SSL\nsasl.jaas.config={login} username="alice" password="hunter2";\n')
    with pytest.raises(ConfigurationError) as raised:
        parsed("--command-config", str(file))
    advice = "sasl.jaas.config is a setting of Java's clients: use sasl.username and sasl.password"
    assert str(raised.value) == f"{file}, line 2: {advice}"


def test_a_mistake_in_a_file_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=me\nacks\n")
    with pytest.raises(ConfigurationError, match=r"client\.properties, line 2: 'acks' is not followed by =VALUE"):
        parsed("--command-config", str(file))


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="it is not UTF-8"):
        parsed("--command-config", str(file))


def test_an_unreachable_cluster_is_an_error_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REACH_SECONDS", 0.1)
    with pytest.raises(KafkaUnavailableError, match=r"gave up after 0\.1 s\): is it running\? see bootstrap\.servers"):
        require_cluster({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(KafkaUnavailableError):
        reached_cluster({"bootstrap.servers": "127.0.0.1:1"})


def test_one_of_several_clusters_has_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "source.properties"
    file.write_text("client.id=mover\n")
    assert config_at("--from", "a:1", file) == {"bootstrap.servers": "a:1", "client.id": "mover"}
    assert config_at("--to", "b:1", None) == {"bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("servers", "text", "message"),
    [
        ("nowhere:port", "", "--from: bootstrap.servers"),
        ("a:1", "client.idd=x\n", "client.idd: there is no such setting"),
        ("a:1", "security.protocol=TLS\n", "--from: security.protocol 'TLS'"),
    ],
)
def test_a_mistake_about_one_of_several_clusters_names_its_option(
    tmp_path: Path, servers: str, text: str, message: str
) -> None:
    file = tmp_path / "source.properties"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        config_at("--from", servers, file)


def test_a_missing_file_is_named_with_its_option() -> None:
    with pytest.raises(ConfigurationError, match="--from-config /no/such/file: No such file"):
        config_at("--from", "a:1", Path("/no/such/file"))
