"""A copy of a stopped or frozen broker, started elsewhere, has everything; a copy of a running one may not.

docs/backup.md promises just this.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.errors import ConfigurationError
from dualwrite.wire.apis import (
    DescribeUserScramCredentialsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.frozen import freeze, thaw
from tests.support.requests import acl_calls, admin_calls, calls
from tests.support.requests.admin_calls import BROKER, TOPIC
from tests.support.requests.group_calls import joined_member
from tests.support.requests.offset_calls import commit, committed
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, SASL, add_users, log_in
from tests.support.waiting import PATIENCE_SECONDS, eventually

PAGE = Path(__file__).parents[3] / "docs" / "backup.md"
CONFIG = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
GROUP, MEMBERS, PREPARED, ENDED = "group", "members", "prepared", "ended"


def fill(client: RawClient) -> str:
    """Something of every kind that a broker stores; the topic of the records."""
    topic = calls.new_topic(client, 3, **{"retention.ms": "123456789"})
    doomed = calls.new_topic(client)
    for partition in range(3):
        calls.produce(client, topic, calls.batch([b"%d" % partition] * 10), partition=partition)
    for name in (ENDED, PREPARED):
        producer = calls.new_producer(client, name, two_phase=True)
        calls.open_transaction(client, name, producer, {(topic, 0): [name.encode()]})
        if name == ENDED:
            calls.end(client, name, producer)
    commit(client, GROUP, {(topic, 0): (7, -1, "a note"), (topic, 2): 10})
    joined_member(client, MEMBERS, topic, session_timeout_ms=300_000)
    acl_calls.create(client, [acl_calls.acl(AclOperation.READ, ResourceType.TOPIC, topic, principal="User:bob")])
    admin_calls.set_config(client, BROKER, "", log_retention_ms="987654321")
    admin_calls.change(client, TOPIC, topic, ("segment.bytes", ConfigOperation.SET, "1048576"))
    admin_calls.delete(client, doomed)
    return topic


def everything(client: RawClient, topic: str) -> dict[str, Any]:
    """What clients can see of all that."""
    about = calls.metadata(client)
    users = DescribeUserScramCredentialsRequest(users=None)
    groups = ListGroupsRequest(states_filter=[], types_filter=[])
    listing = ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=-1)
    return {
        "cluster": about.cluster_id,
        "topics": {
            (entry.name, entry.topic_id, len(entry.partitions)) for entry in client.ask(calls.all_topics(), 12).topics
        },
        "configs": [admin_calls.config(client, TOPIC, topic, name) for name in ("retention.ms", "segment.bytes")],
        "broker": admin_calls.config(client, BROKER, "0", "log.retention.ms"),
        "records": [
            calls.read_all(client, topic, partition, is_committed)
            for partition in range(3)
            for is_committed in (False, True)
        ],
        "offsets": committed(client, GROUP, (topic, 0), (topic, 1), (topic, 2)),
        "groups": {group.group_id for group in client.ask(groups, 5).groups},
        "transactions": {
            (state.transactional_id, state.producer_id, state.transaction_state)
            for state in client.ask(listing, 1).transaction_states
        },
        "rights": acl_calls.described(client),
        "users": {
            (result.user, info.mechanism, info.iterations)
            for result in client.ask(users, 0).results
            for info in result.credential_infos
        },
    }


@pytest.fixture
def original(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    add_users(tmp_path / "original")
    with EmbeddedBroker(tmp_path / "original", config=CONFIG) as broker:
        yield broker


@pytest.mark.slow
def test_a_stopped_copy_started_elsewhere_has_everything(original: EmbeddedBroker, tmp_path: Path) -> None:
    with RawClient(original.bootstrap_servers) as client:
        topic = fill(client)
        before = everything(client, topic)
    original.stop()
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(original.data_dir, copy)
    shutil.rmtree(original.data_dir)  # so that nothing can come from there
    with EmbeddedBroker(copy, config=CONFIG) as restored:
        with RawClient(restored.bootstrap_servers) as client:
            assert everything(client, topic) == before
            assert calls.read_all(client, topic, 0, committed=True) == [b"0"] * 10 + [ENDED.encode()]
            end_of_prepared(client)
            assert calls.read_all(client, topic, 0, committed=True)[-1] == PREPARED.encode()
        with RawClient(restored.listeners[SASL]) as client:
            assert log_in(client, user=ALICE).error_code == ErrorCode.NONE


def end_of_prepared(client: RawClient) -> None:
    """What a recovering application does: it keeps the prepared transaction, and commits it."""
    answer = calls.init(client, PREPARED, two_phase=True, keep=True)
    assert calls.ongoing(answer).producer_id >= 0
    assert calls.end(client, PREPARED, calls.identity(answer)).error_code == ErrorCode.NONE


class BusyClient:
    """Produces one record after another in a thread, and keeps those that were acknowledged."""

    def __init__(self, broker: EmbeddedBroker, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self._stopped = Event()
        self._broker = broker
        self._topic = topic
        self._thread = Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        with RawClient(self._broker.bootstrap_servers) as client:
            number = 0
            while not self._stopped.is_set():
                value = b"%d" % number
                assert calls.produce(client, self._topic, calls.batch([value])).error_code == ErrorCode.NONE
                self.acknowledged.append(value)
                number += 1

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def freeze_and_copy(pid: int, source: Path, copy: Path) -> None:
    freeze(pid)
    shutil.copytree(source, copy)
    thaw(pid)


def follow_the_page(pid: int, source: Path, copy: Path) -> None:
    """As docs/backup.md says it."""
    section = PAGE.read_text().partition("## A frozen copy")[2]
    lines = re.findall(r"^\$ (.*)$", section.partition("```console")[2].partition("```")[0], re.MULTILINE)
    places = {"/var/lib/dualwrite": str(source), "/backup/broker-2026-03-01": str(copy)}
    program = "\n".join(lines)
    for place, own in places.items():
        assert place in program
        program = program.replace(place, own)
    environment = {**os.environ, "PID": str(pid)}
    subprocess.run(["sh", "-euc", program], check=True, env=environment, timeout=PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not tell a thread's state")
@pytest.mark.parametrize("make", [freeze_and_copy, follow_the_page])
def test_a_frozen_copy_has_all_that_was_acknowledged(
    original: EmbeddedBroker, tmp_path: Path, make: Callable[[int, Path, Path], None]
) -> None:
    with RawClient(original.bootstrap_servers) as client:
        topic = calls.new_topic(client)
    busy, pid = BusyClient(original, topic), original.pid
    assert pid is not None
    try:
        eventually(lambda: len(busy.acknowledged), lambda count: count > 50)
        acknowledged = list(busy.acknowledged)
        make(pid, original.data_dir, tmp_path / "copy")
        eventually(lambda: len(busy.acknowledged), lambda count: count > len(acknowledged) + 50)
    finally:
        os.kill(pid, signal.SIGCONT)
        busy.stop()
    with EmbeddedBroker(tmp_path / "copy", config=CONFIG) as restored, RawClient(restored.bootstrap_servers) as client:
        found = calls.read_all(client, topic)
    assert found[: len(acknowledged)] == acknowledged
    assert found == busy.acknowledged[: len(found)]


def copied_in_two_steps(broker: EmbeddedBroker, first: str, between: Any, copy: Path) -> None:
    """A copy of a running broker as ``cp`` may make it: the directory ``first`` early, the others late."""
    shutil.copytree(broker.data_dir / first, copy / first)
    between()
    shutil.copytree(broker.data_dir, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(first))


@pytest.mark.slow
def test_a_copy_of_a_running_broker_may_lack_acknowledged_records(original: EmbeddedBroker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with RawClient(original.bootstrap_servers) as client:
        topic = calls.new_topic(client)
        calls.produce(client, topic, calls.batch([b"1"]))

        def consume_another() -> None:
            calls.produce(client, topic, calls.batch([b"2"]))
            commit(client, GROUP, {(topic, 0): 2})

        copied_in_two_steps(original, f"{topic}-0", consume_another, copy)
    with EmbeddedBroker(copy, config=CONFIG) as torn, RawClient(torn.bootstrap_servers) as client:
        assert committed(client, GROUP, (topic, 0))[topic, 0] == (2, -1, "")
        assert calls.read_all(client, topic) == [b"1"], "the group has finished a record that is not there"


@pytest.mark.slow
def test_a_copy_of_a_running_broker_may_not_start(original: EmbeddedBroker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with RawClient(original.bootstrap_servers) as client:
        topic = calls.new_topic(client)
        calls.produce(client, topic, calls.batch([b"1"]))
        log = original.data_dir / f"{topic}-0" / f"{0:020}.log"
        early = log.read_bytes()
        calls.produce(client, topic, calls.batch([b"2"]))
    original.stop()  # it notes a recovery point, as a running broker does from time to time
    shutil.copytree(original.data_dir, copy)
    (copy / log.relative_to(original.data_dir)).write_bytes(early)
    with pytest.raises(ConfigurationError, match="it was whole up to offset 2 at the last recovery point"):
        EmbeddedBroker(copy, config=CONFIG).start()
