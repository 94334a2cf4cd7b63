"""Users' credentials in the journal: KIP-554's requests, a crash, a stopped broker, and that no secret gets out."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from dualwrite.broker import offline_users
from dualwrite.broker.access.scram_credentials import ScramHash
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.offline_users import open_users
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.broker.runtime.cluster import JOURNAL_DIRECTORY
from dualwrite.errors import ConfigurationError, CorruptLogError
from dualwrite.records.batch import Record
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    Message,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import unique
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import CONFIG, OPEN, SASL, log_in, log_of
from tests.support.waiting import PATIENCE_SECONDS

SALT, SALTED = b"salt-salt-salt", b"a salted password of 32 bytes..."


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=CONFIG) as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(broker.listeners[OPEN]) as connected:
        yield connected


def upsertion(user: str, mechanism: int = 1, iterations: int = 4096) -> Message:
    entry = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    return entry(name=user, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=SALTED)


def alter(client: RawClient, *upsertions: Message, deletions: dict[str, int] | None = None) -> dict[str, ErrorCode]:
    entry = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    request = AlterUserScramCredentialsRequest(
        deletions=[entry(name=name, mechanism=mechanism) for name, mechanism in (deletions or {}).items()],
        upsertions=list(upsertions),
    )
    return {result.user: ErrorCode(result.error_code) for result in client.ask(request, 0).results}


def describe(client: RawClient, *users: str) -> dict[str, tuple[ErrorCode, dict[int, int]]]:
    names = [DescribeUserScramCredentialsRequest.UserName(name=user) for user in users] or None
    results = client.ask(DescribeUserScramCredentialsRequest(users=names), 0).results
    return {
        result.user: (
            ErrorCode(result.error_code),
            {info.mechanism: info.iterations for info in result.credential_infos},
        )
        for result in results
    }


def test_credentials_are_set_described_and_deleted(client: RawClient) -> None:
    user = unique("user")
    assert alter(client, upsertion(user)) == {user: ErrorCode.NONE}
    assert alter(client, upsertion(user, 2, 8192)) == {user: ErrorCode.NONE}
    assert describe(client, user) == {user: (ErrorCode.NONE, {1: 4096, 2: 8192})}
    assert describe(client)[user] == (ErrorCode.NONE, {1: 4096, 2: 8192})
    assert alter(client, deletions={user: 1}) == {user: ErrorCode.NONE}
    assert describe(client, user)[user][1] == {2: 8192}
    assert alter(client, deletions={user: 1}) == {user: ErrorCode.RESOURCE_NOT_FOUND}
    assert alter(client, deletions={user: 2}) == {user: ErrorCode.NONE}
    assert describe(client, user)[user][0] == ErrorCode.RESOURCE_NOT_FOUND


def test_each_user_of_a_request_has_its_own_error(client: RawClient) -> None:
    good, few, twice = (unique("user") for _ in range(3))
    requests = [upsertion(good), upsertion(few, iterations=1), upsertion(twice), upsertion(twice, 2), upsertion("x", 9)]
    assert alter(client, *requests, deletions={"nobody": 1}) == {
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
        good: ErrorCode.NONE,
        few: ErrorCode.UNACCEPTABLE_CREDENTIAL,
        twice: ErrorCode.DUPLICATE_RESOURCE,
        "x": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    assert describe(client, few, twice, good, "nobody", "nobody") == {
        few: (ErrorCode.RESOURCE_NOT_FOUND, {}),
        twice: (ErrorCode.RESOURCE_NOT_FOUND, {}),
        good: (ErrorCode.NONE, {1: 4096}),
        "nobody": (ErrorCode.DUPLICATE_RESOURCE, {}),
    }


def test_an_admin_client_creates_a_user_that_logs_in_at_once(broker: EmbeddedBroker) -> None:
    admin, user = AdminClient({"bootstrap.servers": broker.listeners[OPEN]}), unique("user")

    def change(*changes: object) -> None:
        for future in admin.alter_user_scram_credentials(list(changes)).values():
            future.result(PATIENCE_SECONDS)

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for password in ("first", "second"):
        change(UserScramCredentialUpsertion(user, info, password.encode()))
        with RawClient(broker.listeners[SASL]) as client:
            assert log_in(client, "SCRAM-SHA-512", user, password).error_code == ErrorCode.NONE
        with RawClient(broker.listeners[SASL]) as client:
            assert log_in(client, "SCRAM-SHA-512", user, "third").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    change(UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512))
    with pytest.raises(KafkaException, match="does not exist"):
        change(UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512))
    with RawClient(broker.listeners[SASL]) as client:
        assert log_in(client, "SCRAM-SHA-512", user, "second").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_change_does_not_end_the_connections_of_its_user(broker: EmbeddedBroker, client: RawClient) -> None:
    user = unique("user")
    with open_admin(broker) as admin:
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")]
        )[user].result(PATIENCE_SECONDS)
    with RawClient(broker.listeners[SASL]) as connected:
        assert log_in(connected, "SCRAM-SHA-256", user, "secret").error_code == ErrorCode.NONE
        assert alter(client, deletions={user: 1}) == {user: ErrorCode.NONE}
        assert describe(connected, user)[user][0] == ErrorCode.RESOURCE_NOT_FOUND


def test_acknowledged_credentials_survive_a_crash(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as running:
        with RawClient(running.bootstrap_servers) as client:
            alter(client, upsertion("ann"))
            alter(client, upsertion("bob"))
            alter(client, upsertion("ann", 2, 16384), deletions={"bob": 1})
        running.kill()
        with RawClient(running.start().bootstrap_servers) as client:
            assert describe(client) == {"ann": (ErrorCode.NONE, {1: 4096, 2: 16384})}


def test_no_log_line_has_a_secret(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as running, RawClient(running.bootstrap_servers) as client:
        alter(client, upsertion("ann"), upsertion("bob", iterations=1))
        running.stop()
        assert not any(secret in log_of(running) for secret in ("salt", "salted", "iterations"))


def open_admin(broker: EmbeddedBroker) -> "AdminContext":
    return AdminContext(broker)


class AdminContext:
    """An AdminClient, for a with statement."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._client = AdminClient({"bootstrap.servers": broker.listeners[OPEN]})

    def __enter__(self) -> AdminClient:
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.poll(0)


# --- a broker that is not running


def test_users_of_a_stopped_broker_are_there_when_it_starts(tmp_path: Path) -> None:
    with open_users(tmp_path, create=True) as users:
        assert users.describe() == []
        users.put("ann", list(ScramHash), 4096, b"secret")
        users.put("bob", [ScramHash.SHA_256], 4096, b"secret")
    with ForkedBroker(tmp_path) as running, RawClient(running.bootstrap_servers) as client:
        assert describe(client)["ann"] == (ErrorCode.NONE, {1: 4096, 2: 4096})
        alter(client, upsertion("cy"))
    with open_users(tmp_path) as users:
        assert [user.user for user in users.describe()] == ["ann", "bob", "cy"]
        (result,) = users.delete("bob", [ScramHash.SHA_256])
        assert result.error is ErrorCode.NONE
        (result,) = users.delete("bob", [ScramHash.SHA_256])
        assert result.error is ErrorCode.RESOURCE_NOT_FOUND
    with ForkedBroker(tmp_path) as running, RawClient(running.bootstrap_servers) as client:
        assert sorted(describe(client)) == ["ann", "cy"]


def test_changed_users_of_a_stopped_broker_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryFiles()
    monkeypatch.setattr(offline_users, "DiskFiles", lambda: disk)
    with open_users(tmp_path, create=True) as users:
        users.put("ann", list(ScramHash), 4096, b"secret")
        users.put("bob", list(ScramHash), 4096, b"secret")
        users.delete("bob", list(ScramHash))
        cuts = [disk.power_cut(random.Random(seed)) for seed in range(20)]
    for cut in cuts:
        monkeypatch.setattr(offline_users, "DiskFiles", lambda cut=cut: cut)
        with open_users(tmp_path, create=True) as users:
            assert [user.user for user in users.describe()] == ["ann"]


def test_a_disk_that_fails_while_users_are_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryFiles()
    monkeypatch.setattr(offline_users, "DiskFiles", lambda: disk)
    with open_users(tmp_path, create=True) as users:
        for fault in (disk.appends, disk.syncs):
            fault.fail()
            with pytest.raises(ConfigurationError, match=r"^cannot write .*__cluster_metadata-0: .*injected.*or not$"):
                users.put("ann", list(ScramHash), 4096, b"secret")


def test_the_users_of_a_running_broker_are_locked(broker: EmbeddedBroker) -> None:
    with (
        pytest.raises(ConfigurationError, match="is in use by another broker: use --bootstrap-server HOST:PORT"),
        open_users(broker.data_dir),
    ):
        pass


@pytest.mark.parametrize("create", [False, True])
def test_another_programs_directory_is_not_touched(tmp_path: Path, create: bool) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError), open_users(tmp_path, create):
        pass
    assert "__cluster_metadata-0" not in {path.name for path in tmp_path.iterdir()}


def test_a_directory_is_created_only_to_set_a_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no broker's data in it"), open_users(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()


def test_a_damaged_journal_is_reported(tmp_path: Path) -> None:
    with open_users(tmp_path, create=True) as users:
        users.put("ann", list(ScramHash), 4096, b"secret")
    (segment,) = tmp_path.glob("__cluster_metadata-0/*.log")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    with pytest.raises(CorruptLogError), open_users(tmp_path):
        pass


def test_a_fact_of_a_later_release_is_reported_with_what_to_do(tmp_path: Path) -> None:
    with open_users(tmp_path, create=True) as users:
        users.put("ann", list(ScramHash), 4096, b"secret")
    directory = tmp_path / JOURNAL_DIRECTORY
    later = Journal.open(DiskFiles(), directory, lambda record: None)
    later.append([Record(b"quota:x", b"{}")])
    later.log.close()
    words = (
        f"{directory}: record at offset 3: cluster fact of unknown kind 'quota'. A later release of dualwrite wrote it"
    )
    with pytest.raises(CorruptLogError, match=re.escape(words)), open_users(tmp_path):
        pass


def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with open_users(tmp_path, create=True) as users:
        users.put("ann", list(ScramHash), 4096, b"secret")
    (segment,) = tmp_path.glob("__cluster_metadata-0/*.log")
    segment.unlink()
    segment.mkdir()
    with pytest.raises(ConfigurationError, match=f"^cannot open {segment}: "), open_users(tmp_path):
        pass
