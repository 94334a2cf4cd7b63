"""A broker killed with SIGKILL again and again under producers of every kind: they notice delays, and nothing else."""

import random
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.crash.broker_history import (
    ProducerHistory,
    WrittenFate,
    anomalies,
    committed,
    events_between_kills,
    read_log,
)
from tests.support.crash.broker_producers import (
    PARTITIONS,
    Librdkafka,
    LibrdkafkaTransactions,
    ProducerThread,
    RawIdempotent,
    RawOlderTransactions,
    RawTransactions,
    Recovering,
)
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.consumers import consume
from tests.support.requests.calls import (
    TWO_PHASE_TIMEOUT,
    describe,
    end,
    identity,
    init,
    new_topic,
    ongoing,
    producers,
)
from tests.support.requests.raw_client import RawClient

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KILLS_IN_A_ROW = 8
"""Then everybody may get on once: librdkafka needs longer to begin a session than the broker often lives here."""


@pytest.fixture(params=["fsync", "os"])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that always comes back where its clients look for it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with ForkedBroker(tmp_path / "broker", listen=address, durability=request.param) as running:
        yield running


def kill_under_load(
    broker: EmbeddedBroker, workers: Sequence[ProducerThread], history: ProducerHistory, kills: int, seed: int
) -> None:
    """Kill ``broker`` ``kills`` times while ``workers`` write, and once more when they have ended."""
    chance = random.Random(seed)
    for worker in workers:
        worker.start()
    try:
        for kill in range(kills):
            history.wait_for_events(events_between_kills(chance))
            if kill % KILLS_IN_A_ROW == 0:
                history.wait_for_units_of([worker.name for worker in workers])
            broker.kill()
            broker.start()
    finally:
        for worker in workers:
            worker.stop()
    broker.kill()
    broker.start()


def run(broker: EmbeddedBroker, kills: int, seed: int) -> None:
    """The whole experiment: load, kills, the oracle, and the transaction that stayed prepared."""
    history = ProducerHistory()
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client, partitions=PARTITIONS)
    recovering = Recovering("recovering", broker.bootstrap_servers, topic, history, seed)
    kinds = (RawIdempotent, RawTransactions, RawOlderTransactions, Librdkafka, LibrdkafkaTransactions)
    workers = [kind(kind.__name__, broker.bootstrap_servers, topic, history, seed) for kind in kinds]
    kill_under_load(broker, [recovering, *workers], history, kills, seed)

    with RawClient(broker.bootstrap_servers) as client:
        finish_prepared(client, topic, recovering, history)
        visible = committed(client, topic, PARTITIONS)
        assert anomalies(history.units, read_log(client, topic, PARTITIONS), visible) == []
    assert consume(broker.bootstrap_servers, topic, PARTITIONS) == visible
    fates = history.fates()
    assert fates[WrittenFate.COMMITTED] > 20, fates
    assert fates[WrittenFate.ABORTED] > 5, fates
    assert sum(worker.ask.cut_off for worker in [recovering, *workers]) > 0, "no request was sent in vain"


def finish_prepared(client: RawClient, topic: str, recovering: Recovering, history: ProducerHistory) -> None:
    """See that the last transaction of ``recovering`` is as it was left, and commit it."""
    prepared = recovering.prepared
    state = describe(client, recovering.name)
    assert (state.transaction_state, state.transaction_timeout_ms) == ("Ongoing", TWO_PHASE_TIMEOUT)
    assert (state.producer_id, state.producer_epoch) == (prepared.producer_id, prepared.epoch)
    for partition, start in recovering.starts.items():
        assert producers(client, topic, partition)[prepared.producer_id].current_txn_start_offset == start
    last = next(unit for unit in reversed(history.units) if unit.producer == recovering.name)
    visible = committed(client, topic, PARTITIONS)
    assert not any(value in visible[partition] for partition, value in last.values())
    answer = init(client, recovering.name, two_phase=True, keep=True)
    assert ongoing(answer) == prepared
    assert end(client, recovering.name, identity(answer)).error_code == ErrorCode.NONE
    history.ended(last, WrittenFate.COMMITTED)


@pytest.mark.parametrize("seed", [1])
def test_acknowledged_records_are_there_after_kills_of_the_broker(mortal: EmbeddedBroker, seed: int) -> None:
    run(mortal, kills=8, seed=seed)


@pytest.mark.parametrize("seed", range(2, 5))
def test_acknowledged_records_are_there_after_many_kills_of_the_broker(mortal: EmbeddedBroker, seed: int) -> None:
    run(mortal, kills=40, seed=seed)
