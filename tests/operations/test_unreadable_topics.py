"""What an operator is told who may describe the application's topics, and not read them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.access.acls import AclOperation, PatternType, ResourceType
from dualwrite.testing.kafka import KafkaBroker
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.histories import STATUSES, Case, insert_row, lived
from tests.support.operations.places import CommandResult, OperationsSite, command
from tests.support.requests.acl_calls import acl, create
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, CONFIG, OPEN, PASSWORD, SASL, add_users


class GuardedSite(OperationsSite):
    """A site whose operator is ALICE; the application itself may do everything."""

    def __init__(self, directory: Path, broker: KafkaBroker) -> None:
        super().__init__(f"sqlite:///{directory / 'app.db'}", broker)
        self._config = directory / "alice.properties"
        self._config.write_text(
            f"security.protocol={SASL}\nsasl.mechanism=SCRAM-SHA-256\nsasl.username={ALICE}\nsasl.password={PASSWORD}\n"
        )
        everything = [("TOPIC", self.topic), ("TRANSACTIONAL_ID", self.application), ("CLUSTER", "kafka-cluster")]
        for kind, name in everything:
            self.grant(AclOperation.DESCRIBE, kind, name)

    def grant(self, operation: AclOperation, kind: str, name: str) -> None:
        pattern = PatternType.PREFIXED if kind == "TRANSACTIONAL_ID" else PatternType.LITERAL
        granted = acl(operation, ResourceType[kind], name, principal=f"User:{ALICE}", pattern=pattern)
        with RawClient(self.broker.listeners[OPEN]) as admin:
            create(admin, [granted])

    def as_alice(self, *words: str) -> CommandResult:
        servers = ("--bootstrap-servers", self.broker.listeners[SASL], "--command-config", str(self._config))
        return command(*words, "--db", self.url, *servers)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedSite]:
    """With a transaction that was decided, and then aborted by force."""
    rules = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    add_users(tmp_path / "broker")
    with ForkedKafkaBroker(tmp_path / "broker", config={**CONFIG, **rules, "super.users": "User:ANONYMOUS"}) as broker:
        site = GuardedSite(tmp_path, broker)
        (state,) = lived(site, site.slot(), "f", "native", 0)
        insert_row(site, site.slot(), Case("aborted by force", "transaction 0", state, STATUSES["expired"]))
        yield site
        site.close()


def test_what_the_log_would_tell_is_unclear_without_the_right_to_read_it(guarded: GuardedSite) -> None:
    reason = f"this client may not read topic {guarded.topic}, whose log tells it: grant READ"
    listed = guarded.as_alice("transactions", "list", "--application", guarded.application)
    assert f"what recovery would find is unclear in {guarded.slot()}: {reason}" in listed.out.splitlines()
    described = guarded.as_alice("transactions", "describe", guarded.slot())
    assert f"recovery           unclear: {reason}" in described.out.splitlines()
    resolved = guarded.as_alice("transactions", "resolve", guarded.slot())
    assert resolved.out.splitlines()[0] == f"{guarded.slot()}: unclear: {reason}"
    doctor = guarded.as_alice("doctor").out
    assert f"what recovery would find is unclear in {guarded.slot()}: {reason}" in doctor
    assert "nothing is left open" not in doctor

    guarded.grant(AclOperation.READ, "TOPIC", guarded.topic)
    listed = guarded.as_alice("transactions", "list", "--application", guarded.application)
    assert (listed.code, "recovery would find a heuristic abort" in listed.out) == (1, True)
    assert guarded.run("recover", "--application", guarded.application).out.startswith(
        f"{guarded.slot()}: heuristic abort"
    )
