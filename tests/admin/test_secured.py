"""The daily verbs on listeners with SASL and TLS, and with few rights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.admin.topics import describe_topic
from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.admin.admin_site import AdminSite
from tests.support.client.certificate import CERTIFICATE
from tests.support.peer_clients.kafka_helpers import fresh_name
from tests.support.peer_clients.secure_brokers import ENCRYPTED, secure_broker
from tests.support.requests.acl_calls import acl, create
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, BOB, OPEN, PASSWORD, SASL

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with secure_broker(tmp_path_factory.mktemp("secured") / "broker", **AUTHORIZER) as running:
        yield running


@pytest.fixture
def owner(broker: EmbeddedBroker) -> AdminSite:
    """Who may do everything."""
    return AdminSite(broker.listeners[OPEN])


def user(broker: EmbeddedBroker, listener: str, tmp_path: Path, name: str = BOB, **other: str) -> AdminSite:
    """A user with a password, on a listener with SASL. Bob has no right but those of the test."""
    config = {
        "security.protocol": listener,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": name,
        "sasl.password": PASSWORD,
    }
    if listener == ENCRYPTED:
        trust = tmp_path / "ca.pem"
        trust.write_text(CERTIFICATE)
        config["ssl.ca.location"] = str(trust)
    return AdminSite(broker.listeners[listener], {**config, **other})


def grant(broker: EmbeddedBroker, *rights: tuple[AclOperation, ResourceType, str], name: str = BOB) -> None:
    with RawClient(broker.listeners[OPEN]) as admin:
        create(admin, [acl(*right, principal=f"User:{name}") for right in rights])


@pytest.mark.slow_cases
@pytest.mark.parametrize("listener", [SASL, ENCRYPTED])
def test_every_verb_works_on_a_secured_listener(broker: EmbeddedBroker, tmp_path: Path, listener: str) -> None:
    site, topic, group = user(broker, listener, tmp_path, ALICE), fresh_name(), fresh_name()
    grant(
        broker,
        (AclOperation.ALL, ResourceType.TOPIC, topic),
        (AclOperation.ALL, ResourceType.GROUP, group),
        (AclOperation.ALL, ResourceType.CLUSTER, "kafka-cluster"),
        name=ALICE,
    )
    assert site.run("topics", "create", topic) == (0, f"topic {topic}: created\n", "")
    site.plain(topic, "a")
    assert topic in site.run("topics", "list").out
    assert site.rows("consume", topic) == [["0", "0", "plain", "-", "a", "value", "of", "a"]]
    assert site.run("groups", "reset-offsets", group, "--topic", topic, "--to", "beginning", "--yes").code == 0
    assert [topic, "0", "0", "1", "1", "1", "1", "-"] in [
        line.split() for line in site.run("groups", "describe", group).out.splitlines()
    ]
    assert site.run("groups", "delete", group, "--yes").code == 0
    assert site.run("acls", "list", "--topic", topic).out.count("\n") == 2
    assert site.run("topics", "delete", topic, "--yes").code == 0


def test_a_file_of_settings_keeps_the_password_off_the_command_line(
    broker: EmbeddedBroker, owner: AdminSite, tmp_path: Path
) -> None:
    topic, settings = owner.topic(), tmp_path / "client.properties"
    grant(broker, (AclOperation.DESCRIBE, ResourceType.TOPIC, topic))
    settings.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username={BOB}\nsasl.password={PASSWORD}\n"
    )
    result = AdminSite(broker.listeners[SASL]).run("topics", "list", "--command-config", str(settings))
    assert (result.code, result.err) == (0, "")
    assert topic in result.out


def test_parts_of_a_topic_that_may_not_be_seen_are_said_to_be_missing(
    broker: EmbeddedBroker, owner: AdminSite, tmp_path: Path
) -> None:
    topic = owner.topic()
    owner.plain(topic, "a")
    grant(broker, (AclOperation.DESCRIBE, ResourceType.TOPIC, topic))
    site = user(broker, SASL, tmp_path)
    described = describe_topic(site.config, topic)
    (partition,) = described.partitions
    assert (described.settings, partition.size, partition.open_transactions) == (None, None, None)
    assert (partition.earliest, partition.last_stable_offset, partition.high_watermark) == (0, 1, 1)
    code, out, _ = site.run("topics", "describe", topic)
    assert code == 0
    assert "settings  not shown: DESCRIBE_CONFIGS on the topic is not granted" in out
    assert out.splitlines()[-1] == "open transactions are not shown: READ on the topic is not granted"
    refused = site.run("consume", topic)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "TOPIC_AUTHORIZATION_FAILED (29)" in refused.err


def test_reading_needs_the_right_to_read_and_no_other(broker: EmbeddedBroker, owner: AdminSite, tmp_path: Path) -> None:
    topic = owner.topic()
    writer = owner.producer().write(topic, "a").commit()
    grant(broker, (AclOperation.READ, ResourceType.TOPIC, topic))
    site = user(broker, SASL, tmp_path)
    assert site.rows("consume", topic)[0][:5] == ["0", "0", "committed", "-", "a"]
    grant(broker, (AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, writer.name))
    assert site.rows("consume", topic)[0][:5] == ["0", "0", "committed", writer.name, "a"]


def test_a_lag_is_shown_without_the_right_to_count_records(
    broker: EmbeddedBroker, owner: AdminSite, tmp_path: Path
) -> None:
    topic, group = owner.topic(), fresh_name()
    owner.plain(topic, "a")
    assert owner.run("groups", "reset-offsets", group, "--topic", topic, "--to", "beginning", "--yes").code == 0
    grant(
        broker, (AclOperation.DESCRIBE, ResourceType.TOPIC, topic), (AclOperation.DESCRIBE, ResourceType.GROUP, group)
    )
    rows = [line.split() for line in user(broker, SASL, tmp_path).run("groups", "describe", group).out.splitlines()]
    assert [topic, "0", "0", "1", "1", "1", "?", "-"] in rows


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("topics", "create", "t-refused"), "topic 't-refused' was not created: "),
        (("topics", "describe", "t-refused"), "topic 't-refused': TOPIC_AUTHORIZATION_FAILED (29)"),
        (("acls", "list"), "the ACLs were not listed: "),
        (("groups", "describe", "g-refused"), "FindCoordinator of g-refused: GROUP_AUTHORIZATION_FAILED (30)"),
    ],
)
def test_what_is_not_granted_is_one_line(
    broker: EmbeddedBroker, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    site = user(broker, SASL, tmp_path)
    code, out, err = site.run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"dualwrite: {reason}")
    if "AUTHORIZATION_FAILED" in err:
        assert ": grant a right on the " in err


def test_a_wrong_password_is_one_line_at_once(broker: EmbeddedBroker, tmp_path: Path) -> None:
    site = user(broker, SASL, tmp_path, **{"sasl.password": "wrong"})
    for words in (("topics", "list"), ("consume", "t"), ("groups", "list"), ("acls", "list")):
        code, out, err = site.run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("dualwrite: sasl.username and sasl.password: ")


def test_a_certificate_that_is_not_trusted_is_one_line(broker: EmbeddedBroker, tmp_path: Path) -> None:
    site = user(broker, ENCRYPTED, tmp_path)
    del site.config["ssl.ca.location"]
    code, out, err = site.run("topics", "list")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "its certificate is not trusted" in err
