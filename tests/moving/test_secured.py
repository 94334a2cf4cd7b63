"""``dualwrite move`` between clusters with TLS, SASL and ACLs: settings from files, and the rights of the manual."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import insert

from dualwrite.broker.access.acls import AclOperation, PatternType, ResourceType
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from tests.support.client.certificate import CERTIFICATE
from tests.support.coordinator.event_table import events, ready_engine
from tests.support.moving.move_site import (
    MoveSite,
    commit_offset,
    create_topic,
    fill,
    read,
    rest_of,
    without_database,
)
from tests.support.operations.places import CommandResult, command
from tests.support.peer_clients.secure_brokers import ENCRYPTED, secure_broker
from tests.support.requests.acl_calls import acl, create
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, BOB, OPEN, PASSWORD, SASL

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPIC, GROUP, ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READING = ((AclOperation.DESCRIBE, TOPIC), (AclOperation.DESCRIBE_CONFIGS, TOPIC), (AclOperation.READ, TOPIC))
AT_SOURCE = (*READING, (AclOperation.DESCRIBE, GROUP))
AT_TARGET = (
    *READING,
    *((operation, TOPIC) for operation in (AclOperation.CREATE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS)),
    (AclOperation.WRITE, TOPIC),
    (AclOperation.WRITE, ID),
    (AclOperation.DESCRIBE, ID),
    (AclOperation.READ, GROUP),
    (AclOperation.DESCRIBE, GROUP),
)
"""The rights in docs/moving.md."""
JOURNALS = "dualwrite-move."

Rights = Sequence[tuple[AclOperation, ResourceType]]


class SecuredMove:
    """A source whose clients speak TLS, and a target whose clients do not; both ask for a password and for rights.

    The oracle uses open listeners, as a super user.
    """

    def __init__(self, source: EmbeddedBroker, target: EmbeddedBroker, directory: Path) -> None:
        self.open = MoveSite(source, target)
        self._brokers = source, target
        self._directory = directory
        trust = directory / "ca.pem"
        trust.write_text(CERTIFICATE)
        self.settings = self._file("from", ENCRYPTED, ALICE, f"ssl.ca.location={trust}"), self._file("to", SASL, BOB)

    def _file(self, name: str, protocol: str, user: str, *others: str) -> Path:
        file = self._directory / f"{name}.properties"
        lines = (
            "# for dualwrite move",
            f"security.protocol={protocol}",
            "sasl.mechanism=SCRAM-SHA-256",
            f"sasl.username={user}",
            f"sasl.password={PASSWORD}",
            *others,
        )
        file.write_text("\n".join(lines), encoding="utf-8")
        return file

    def grant(self, side: int, rights: Rights, topics: Sequence[str], groups: Sequence[str]) -> None:
        """``rights`` for the mover's user of a side, on these topics and groups, and on the journals."""
        principal = f"User:{(ALICE, BOB)[side]}"
        names = {TOPIC: topics, GROUP: groups, ID: ()}
        with RawClient(self._brokers[side].listeners[OPEN]) as admin:
            for operation, kind in rights:
                acls = [acl(operation, kind, name, principal=principal) for name in names[kind]]
                if kind is not GROUP:
                    acls.append(acl(operation, kind, JOURNALS, principal=principal, pattern=PatternType.PREFIXED))
                create(admin, acls)

    def grant_application(self, application: str) -> None:
        """At the source DESCRIBE on the transactional ids of an application."""
        principal = f"User:{ALICE}"
        with RawClient(self._brokers[0].listeners[OPEN]) as admin:
            ids = acl(AclOperation.DESCRIBE, ID, f"{application}-", principal=principal, pattern=PatternType.PREFIXED)
            create(admin, [ids])

    def run(self, *words: str) -> CommandResult:
        source, target = self._brokers
        places = ("--from", source.listeners[ENCRYPTED], "--to", target.listeners[SASL])
        files = ("--from-config", str(self.settings[0]), "--to-config", str(self.settings[1]))
        return command("move", *places, *files, *words, *without_database(words))


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredMove]:
    with (
        secure_broker(tmp_path / "source", **AUTHORIZER) as source,
        secure_broker(tmp_path / "target", **AUTHORIZER) as target,
    ):
        yield SecuredMove(source, target, tmp_path)


def filled(site: MoveSite) -> str:
    topic = create_topic(site.source, partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    fill(site.source, topic, 2, rounds=1)
    commit_offset(site.source, "group", topic, 3)
    return topic


@pytest.mark.slow
def test_a_move_works_over_tls_and_with_passwords_and_the_rights_of_the_manual(
    secured: SecuredMove, tmp_path: Path
) -> None:
    site = secured.open
    topic = filled(site)
    create_topic(site.source)  # hidden from the mover
    engine = ready_engine(f"sqlite:///{tmp_path / 'app.db'}")
    config = {"bootstrap.servers": site.source.bootstrap_servers}
    with DualWrite(engine, config, application="app") as dw, dw.transaction() as tx:
        tx.execute(insert(events), {"value": "a"})
        tx.produce(topic, value="unit", partition=1)
    secured.grant(0, AT_SOURCE, [topic], ["group"])
    secured.grant(1, AT_TARGET, [topic], ["group"])
    secured.grant_application("app")
    for words in (
        ("--dry-run",),
        (),
        ("--finish", "--verify", "--db", f"sqlite:///{tmp_path / 'app.db'}"),
        ("--check",),
    ):
        result = secured.run(*words)
        assert (result.code, result.err) == (0, ""), words
    assert read(site.target, topic, 2) == read(site.source, topic, 2)
    assert rest_of(site.target, "group", topic) == rest_of(site.source, "group", topic)
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "lacking"),
    [
        (0, (AclOperation.READ, TOPIC)),
        (0, (AclOperation.DESCRIBE_CONFIGS, TOPIC)),
        (1, (AclOperation.CREATE, TOPIC)),
        (1, (AclOperation.WRITE, TOPIC)),
        (1, (AclOperation.WRITE, ID)),
        (1, (AclOperation.ALTER_CONFIGS, TOPIC)),
        (1, (AclOperation.READ, GROUP)),
    ],
    ids=lambda value: value if isinstance(value, int) else f"{value[0].name}-{value[1].name}",
)
def test_a_right_that_is_missing_is_one_line_and_nothing_is_finished(
    secured: SecuredMove, side: int, lacking: tuple[AclOperation, ResourceType]
) -> None:
    topic = filled(secured.open)
    rights: list[Rights] = [AT_SOURCE, AT_TARGET]
    for number, all_of_them in enumerate(rights):
        granted = [right for right in all_of_them if number != side or right != lacking]
        secured.grant(number, granted, [topic], ["group"])
    refused = secured.run("--finish")
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
    assert "AUTHORIZATION_FAILED" in refused.err
    secured.grant(side, [lacking], [topic], ["group"])
    result = secured.run("--finish", "--verify")
    assert result.code == 0
    assert read(secured.open.target, topic, 2) == read(secured.open.source, topic, 2)


@pytest.mark.slow_cases
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("sasl.password=", "sasl.password=wrong "), "sasl.username and sasl.password"),
        (("sasl.mechanism=SCRAM-SHA-256", "sasl.mechanism=NONSENSE"), "NONSENSE"),
        (("sasl.username=", "sasl.user="), "sasl.user: there is no such setting"),
        (
            ("security.protocol=", "transactional.id=x\nsecurity.protocol="),
            "transactional.id is set by dualwrite itself",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(secured: SecuredMove, side: int, change: tuple[str, str], message: str) -> None:
    file = secured.settings[side]
    file.write_text(file.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    result = secured.run()
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert message in result.err
    assert PASSWORD not in result.err


def test_a_certificate_that_is_not_trusted_is_one_line(secured: SecuredMove) -> None:
    file = secured.settings[0]
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("ssl.")]
    file.write_text("\n".join(lines), encoding="utf-8")
    result = secured.run()
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert "its certificate is not trusted" in result.err
