"""TwoPhaseProducer on a real Apache Kafka: with a timeout, in two-phase commit, and where it is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite import TwoPhaseProducer
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.net.socket_connection import SocketConnection
from dualwrite.errors import ConfigurationError, FencedError, TwoPhaseCommitUnavailableError
from dualwrite.wire.apis import ApiKey
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.peer_clients.consumers import consume
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

PLAIN = {"transaction.two.phase.commit.enable": "false"}
Make = Callable[..., TwoPhaseProducer]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """One Apache Kafka with two-phase commit, as far as it has it."""
    settings = {"transaction.two.phase.commit.enable": "true"}
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), settings, unstable_api_versions=True) as running:
        yield running


@pytest.fixture
def make(kafka: ApacheKafka) -> Iterator[Make]:
    """Makes producers of one transactional id, and closes them."""
    made: list[TwoPhaseProducer] = []
    basis = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": fresh_name()}

    def producer(**config: Any) -> TwoPhaseProducer:
        made.append(TwoPhaseProducer({**basis, **config}))
        made[-1].init_transactions()
        return made[-1]

    yield producer
    for each in made:
        each.close()


@pytest.mark.parametrize("config", [PLAIN, {}], ids=["with a timeout", "in two-phase commit"])
def test_units_of_work_take_two_requests_each_and_are_there_once(
    kafka: ApacheKafka, make: Make, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, asked, send = fresh_name(), [], SocketConnection.send
    create_topic(kafka.bootstrap_servers, topic, 2)

    def noting(self: SocketConnection, tag: int, api_key: ApiKey, *others: Any) -> None:
        asked.append(api_key)
        send(self, tag, api_key, *others)

    producer = make(**config)
    for number in range(20):
        if number == 1:
            monkeypatch.setattr(SocketConnection, "send", noting)
        producer.begin_transaction()
        producer.produce(topic, f"{number}", partition=0)
        assert producer.complete_transaction(producer.prepare_transaction()) is TransactionResult.COMMITTED
    producer.begin_transaction()
    producer.produce(topic, "aborted", partition=1)
    producer.flush()
    assert producer.abort_transaction() is TransactionResult.ABORTED
    seen = consume(kafka.bootstrap_servers, topic, 2, minimum=20)
    assert seen == {0: [b"%d" % number for number in range(20)], 1: []}
    # Kafka answers EndTxn before the markers are down, so that the next Produce may have to be asked again.
    assert set(asked) == {ApiKey.PRODUCE, ApiKey.END_TXN}
    assert asked.count(ApiKey.END_TXN) == 20


def test_the_next_session_fences_the_one_before_and_aborts_its_transaction(kafka: ApacheKafka, make: Make) -> None:
    topic = fresh_name()
    create_topic(kafka.bootstrap_servers, topic)
    first = make()
    first.begin_transaction()
    first.produce(topic, "left")
    first.prepare_transaction()
    second = make()  # Apache Kafka 4.4 knows no KeepPreparedTxn: plain
    with pytest.raises(FencedError):
        first.commit_transaction()
    second.begin_transaction()
    second.produce(topic, "next")
    second.commit_transaction()
    assert consume(kafka.bootstrap_servers, topic, minimum=1) == {0: [b"next"]}


def test_a_transaction_in_two_phase_commit_has_no_timeout(kafka: ApacheKafka, make: Make) -> None:
    make(**{"transactional.id": "never"})
    control = ControlPlane({"bootstrap.servers": kafka.bootstrap_servers})
    described = control.describe_transaction("never")
    control.close()
    assert described is not None
    assert described.timeout_ms == 2147483647


def test_a_promise_that_the_broker_cannot_keep_is_refused(kafka: ApacheKafka) -> None:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": fresh_name()}
    with TwoPhaseProducer(config) as producer, pytest.raises(TwoPhaseCommitUnavailableError):
        producer.init_transactions(keep_prepared_txn=True)


def test_a_cluster_without_tv2_is_left_to_librdkafka(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), features={"transaction.version": 1}) as old:
        config = {"bootstrap.servers": old.bootstrap_servers, "transactional.id": "app-0", **PLAIN}
        with (
            TwoPhaseProducer(config) as producer,
            pytest.raises(ConfigurationError, match=r'transaction.version is 1 .*producer="librdkafka"'),
        ):
            producer.init_transactions()
