"""The Java client, Kafka's own tool for credentials, and franz-go: they authenticate as they were released."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.apache_kafka.single_node import java_program
from tests.support.client.certificate import CERTIFICATE
from tests.support.peer_clients.consumers import consume
from tests.support.peer_clients.java_programs import LOGIN, USERS
from tests.support.peer_clients.secure_brokers import ENCRYPTED, MECHANISMS, SESSION_MS, secure_broker
from tests.support.requests.calls import unique
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, OPEN, PASSWORD, SASL, log_in, log_of, unsecured_token

pytestmark = pytest.mark.slow

_LOGINS = "org.apache.kafka.common.security"
REASONS = {"PLAIN": "Invalid username or password", "OAUTHBEARER": "invalid_token"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with secure_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


# --- Java


def java_config(
    directory: Path, broker: EmbeddedBroker, mechanism: str, password: str = PASSWORD, protocol: str = SASL
) -> Path:
    """A file of settings for the Java client."""
    settings = {
        "bootstrap.servers": broker.listeners[protocol],
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
    }
    if protocol == ENCRYPTED:
        (directory / "ca.pem").write_text(CERTIFICATE)
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(directory / "ca.pem")}
    if mechanism == "OAUTHBEARER":
        user = ALICE if password == PASSWORD else ""
        options = f'unsecuredLoginStringClaim_sub="{user or "x"}"'
        if not user:  # a token that has expired for the broker
            options += ' unsecuredLoginListClaim_aud="x" unsecuredLoginNumberClaim_nbf="9999999999"'
        settings["sasl.jaas.config"] = f"{_LOGINS}.oauthbearer.OAuthBearerLoginModule required {options};"
    else:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        settings["sasl.jaas.config"] = f'{_LOGINS}.{module} required username="{ALICE}" password="{password}";'
    file = directory / "client.properties"
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    file.write_text(text.encode("ascii", "backslashreplace").decode().replace("\\xf6", "\\u00f6"))
    return file


def java_login(config: Path, topic: str, millis: int = 0) -> str:
    done = java_program(LOGIN, str(config), topic, str(millis))
    return done.stdout.strip() or done.stderr


@pytest.mark.jvm
@pytest.mark.parametrize("protocol", [SASL, ENCRYPTED])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_client_commits_a_transaction(
    broker: EmbeddedBroker, tmp_path: Path, mechanism: str, protocol: str
) -> None:
    topic = unique("topic")
    assert java_login(java_config(tmp_path, broker, mechanism, protocol=protocol), topic) == "committed 1"
    assert consume(broker.listeners[OPEN], topic, minimum=1)[0] == [b"value 0"]


@pytest.mark.jvm
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_client_says_what_is_wrong(broker: EmbeddedBroker, tmp_path: Path, mechanism: str) -> None:
    said = java_login(java_config(tmp_path, broker, mechanism, "wrong"), unique("topic"))
    assert "SaslAuthenticationException" in said
    assert REASONS.get(mechanism, f"invalid credentials with SASL mechanism {mechanism}") in said


@pytest.mark.jvm
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_the_java_client_works_for_longer_than_its_session(tmp_path: Path, mechanism: str) -> None:
    with secure_broker(tmp_path / "data", **{"connections.max.reauth.ms": str(SESSION_MS)}) as running:
        said = java_login(java_config(tmp_path, running, mechanism), unique("topic"), 3 * SESSION_MS)
        assert said.startswith("committed "), said
        assert int(said.split()[1]) > 3
        assert "the session of" not in log_of(running), "it authenticates anew on the same connection"


# --- Java's administrator: kafka-configs of 4.4.0 is not in Maven Central, and sends these requests


def java_users(broker: EmbeddedBroker, *arguments: str) -> list[str]:
    return java_program(USERS, broker.listeners[OPEN], *arguments).stdout.splitlines()


@pytest.mark.jvm
def test_the_java_administrator_sets_describes_and_deletes_credentials(broker: EmbeddedBroker) -> None:
    user = unique("user")
    done, described = java_users(broker, user, "set", "8192", "secret")
    assert done == "done"
    assert "SCRAM_SHA_512, iterations=8192" in described
    with RawClient(broker.listeners[SASL]) as client:
        assert log_in(client, "SCRAM-SHA-512", user, "secret").error_code == 0
    assert java_users(broker, user, "set", "4095", "secret")[0] == "Too few iterations"
    gone = f"Attempt to describe a user credential that does not exist: {user}"
    assert java_users(broker, user, "delete") == ["done", gone]
    assert java_users(broker, user, "delete")[0] == "Attempt to delete a user credential that does not exist"


# --- franz-go


def go_login(login: Path, broker: EmbeddedBroker, topic: str, mechanism: str, secret: str) -> str:
    where = ("-brokers", broker.listeners[SASL], "-topic", topic)
    who = ("-mechanism", mechanism, "-user", ALICE, "-secret", secret)
    return subprocess.run([str(login), *where, *who], capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.go
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_franz_go_commits_a_transaction_and_says_what_is_wrong(
    login: Path, broker: EmbeddedBroker, mechanism: str
) -> None:
    topic = unique("topic")
    secret = unsecured_token() if mechanism == "OAUTHBEARER" else PASSWORD
    assert go_login(login, broker, topic, mechanism, secret) == "committed"
    assert consume(broker.listeners[OPEN], topic, minimum=1)[0] == [b"value"]
    said = go_login(login, broker, topic, mechanism, "wrong")
    # franz-go 1.22 does not answer the challenge of RFC 7628, so it does not get the error code
    reason = "unexpected data in oauth response" if mechanism == "OAUTHBEARER" else "SASL_AUTHENTICATION_FAILED"
    assert reason in said
    assert f"failed: {mechanism}" in log_of(broker)


@pytest.mark.go
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_franz_go_commits_a_transaction_with_sasl_over_tls(
    login: Path, broker: EmbeddedBroker, tmp_path: Path, mechanism: str
) -> None:
    topic, authority = unique("topic"), tmp_path / "ca.pem"
    authority.write_text(CERTIFICATE)
    secret = unsecured_token() if mechanism == "OAUTHBEARER" else PASSWORD
    where = ("-brokers", broker.listeners[ENCRYPTED], "-topic", topic, "-ca", str(authority))
    command = [str(login), *where, "-mechanism", mechanism, "-user", ALICE, "-secret", secret]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "committed", said.stderr
    assert consume(broker.listeners[OPEN], topic, minimum=1)[0] == [b"value"]
