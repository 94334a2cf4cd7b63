"""What can go wrong around a transaction, each story told to a real broker: a retry whose first answer was lost, a
zombie, a crash between the decision and its markers. (A transaction that hangs: test_write_txn_markers.py.)
"""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from dualwrite.broker.core.commands import EndTransaction
from dualwrite.broker.core.transaction_rules import TransactionSettings
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.broker.process.system import SystemClock
from dualwrite.broker.runtime.cluster import Cluster, TopicSettings
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import Killed, SeededEntropy
from tests.support.requests.calls import (
    LATEST,
    add,
    batch,
    describe,
    end,
    identity,
    init,
    list_offset,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    produce_request,
    producers,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient

OLD, NEW = 9, 12
"""Versions of Produce: before KIP-890's second part, and of it."""


def end_version(produce_version: int) -> int:
    return 5 if produce_version == NEW else 3


@pytest.mark.parametrize("version", [OLD, NEW])
def test_duplicate_by_retry_is_in_the_transaction_once(shared_broker: EmbeddedBroker, version: int) -> None:
    """The answer is lost with its connection, and the client sends the same batch again over another one."""
    with RawClient(shared_broker.bootstrap_servers) as client:
        topic, transactional_id = new_topic(client), unique("tx")
        producer = new_producer(client, transactional_id)
        add(client, transactional_id, producer, (topic, 0))
        request = produce_request({(topic, 0): tx_batch([b"once"], producer)}, transactional_id)
        lost = RawClient(shared_broker.bootstrap_servers)
        lost.receive(ApiKey.PRODUCE, version, lost.send(request, version))  # it was appended, but the answer is lost
        lost.close()
        (again,) = client.ask(request, version).responses[0].partition_responses
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        end(client, transactional_id, producer, version=end_version(version))
        assert read_all(client, topic) == [b"once"]


def test_duplicate_by_retry_of_the_commit_hits_no_later_transaction(client: RawClient) -> None:
    """Under TV2 a retry is known by its epoch; the transaction that has begun meanwhile stays open."""
    topic, transactional_id = new_topic(client), unique("tx")
    first = new_producer(client, transactional_id)
    open_transaction(client, transactional_id, first, {(topic, 0): [b"first"]})
    second = identity(end(client, transactional_id, first))
    assert identity(end(client, transactional_id, first)) == second, "the answer was lost, and asked for again"
    open_transaction(client, transactional_id, second, {(topic, 0): [b"second"]})
    assert end(client, transactional_id, first).error_code == ErrorCode.PRODUCER_FENCED
    assert describe(client, transactional_id).transaction_state == "Ongoing"
    assert read_all(client, topic) == [b"first"]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_zombie_writes_nothing_and_decides_nothing(client: RawClient, version: int) -> None:
    """A process that was taken for dead goes on, while its successor has its transactional id."""
    topic, transactional_id = new_topic(client), unique("tx")
    zombie = new_producer(client, transactional_id)
    add(client, transactional_id, zombie, (topic, 0))
    produce(client, topic, tx_batch([b"before"], zombie), transactional_id, version=version)
    successor = identity(init(client, transactional_id))

    written = produce(client, topic, tx_batch([b"after"], zombie, sequence=1), transactional_id, version=version)
    added = add(client, transactional_id, zombie, (topic, 0))
    ended = end(client, transactional_id, zombie, version=end_version(version))
    began = init(client, transactional_id, expected=zombie)

    assert written.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = [added[topic, 0], ended.error_code, began.error_code]
    assert fenced == [ErrorCode.PRODUCER_FENCED] * 3
    add(client, transactional_id, successor, (topic, 0))
    produce(client, topic, tx_batch([b"the successor's"], successor), transactional_id, version=version)
    end(client, transactional_id, successor, version=end_version(version))
    assert read_all(client, topic) == [b"the successor's"]


# --- a crash between the decision and its end


class DyingCluster(Cluster):
    """The partitions of a broker that is killed after it has written so many ``markers``."""

    markers = 0

    def partition(self, name: TopicPartition) -> Partition | None:
        if not self.markers:
            raise Killed
        self.markers -= 1
        return super().partition(name)


def killed(reason: BaseException) -> NoReturn:
    raise reason


def crash_after_the_decision(data_dir: Path, transactional_id: str, result: Marker, markers: int) -> None:
    """Do what a broker does for EndTxn up to the first ``markers`` of its markers, and no more."""

    async def main() -> None:
        files, flusher, clock = DiskFiles(), Flusher(durable=True, on_failure=killed), SystemClock()
        cluster = DyingCluster(files, data_dir, flusher, clock, SeededEntropy(random.Random(1)), TopicSettings())
        cluster.markers = markers
        coordinator = TransactionCoordinator(files, data_dir, cluster, flusher, clock, TransactionSettings())
        client = coordinator.table.entries[transactional_id].client
        with suppress(Killed):  # after the last marker the end is not written yet
            await coordinator.execute(EndTransaction(transactional_id, client, result, TransactionVersion.TV2))
        await flusher.close()

    asyncio.run(main())


@pytest.mark.slow_cases
@pytest.mark.parametrize("result", Marker)
@pytest.mark.parametrize("markers", range(3))
def test_crash_between_prepare_and_markers_is_finished_by_the_next_start(
    broker: EmbeddedBroker, tmp_path: Path, result: Marker, markers: int
) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic, transactional_id = new_topic(client, partitions=2), unique("tx")
        producer = new_producer(client, transactional_id)
        open_transaction(client, transactional_id, producer, {(topic, index): [b"%d" % index] for index in (0, 1)})
        for index in (0, 1):
            produce(client, topic, batch([b"behind it"]), partition=index)
    broker.kill()
    crash_after_the_decision(tmp_path / "broker", transactional_id, result, markers)

    broker.start()

    with RawClient(broker.bootstrap_servers) as client:
        decided = {Marker.COMMIT: "CompleteCommit", Marker.ABORT: "CompleteAbort"}[result]
        assert describe(client, transactional_id).transaction_state == decided
        for index in (0, 1):
            seen = [b"%d" % index, b"behind it"] if result is Marker.COMMIT else [b"behind it"]
            assert read_all(client, topic, index) == seen
            assert producers(client, topic, index)[producer.producer_id].current_txn_start_offset == -1
            latest = [
                list_offset(client, topic, LATEST, partition=index, committed=flag).offset for flag in (True, False)
            ]
            assert latest[0] == latest[1], "nothing is held back"
        retried = end(client, transactional_id, producer, commit=result is Marker.COMMIT)
        following = identity(retried)
        assert following == ProducerIdentity(producer.producer_id, producer.epoch + 1)
        open_transaction(client, transactional_id, following, {(topic, 0): [b"next"]})
        assert describe(client, transactional_id).topics[0].partitions == [0]
        end(client, transactional_id, following)
        assert read_all(client, topic, 0)[-1] == b"next"


def test_crash_in_the_middle_of_a_transaction_leaves_it_to_its_owner(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic, transactional_id = new_topic(client, partitions=2), unique("tx")
        producer = new_producer(client, transactional_id)
        open_transaction(client, transactional_id, producer, {(topic, 0): [b"a"]})
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert describe(client, transactional_id).transaction_state == "Ongoing"
        content = {(topic, 0): tx_batch([b"b"], producer, 1), (topic, 1): tx_batch([b"c"], producer)}
        answer = client.ask(produce_request(content, transactional_id), NEW).responses[0]
        assert {entry.error_code for entry in answer.partition_responses} == {ErrorCode.NONE}
        end(client, transactional_id, producer)
        assert [read_all(client, topic, index) for index in (0, 1)] == [[b"a", b"b"], [b"c"]]
