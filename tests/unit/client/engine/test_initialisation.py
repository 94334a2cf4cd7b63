"""What initialising a producer does with the transaction that a predecessor left."""

import pytest

from dualwrite.client.engine.contract import Open
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.protocol.requests import CoordinatorOf
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.client.terms.versions import Versions
from dualwrite.errors import (
    ConfigurationError,
    DualWriteError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import TV2_VERSIONS, TXN_ID, SimulatedCluster, SimulatedDriver
from tests.support.client.simulated_engine import T0, committed, ready, refuse


def test_init_aborts_what_a_predecessor_left() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.prepare()
    successor = SimulatedDriver(driver.cluster)
    driver.cluster.requests.clear()
    successor.init()
    assert successor.engine.state is ProducerState.READY
    assert driver.cluster.requests == [ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN]
    assert committed(driver) == []
    with pytest.raises(FencedError):
        driver.commit()
    assert driver.engine.state is ProducerState.FAILED


def test_an_init_that_refuses_an_open_transaction_leaves_it_to_be_decided() -> None:
    driver = ready()
    driver.begin(b"a")
    state = driver.prepare()
    late = SimulatedDriver(driver.cluster)
    with pytest.raises(FencedError, match="another process has begun a transaction, which stays open"):
        late.init(refuse_open=True)
    assert late.engine.state is ProducerState.FAILED
    assert driver.cluster.requests[-1] is ApiKey.INIT_PRODUCER_ID
    successor = SimulatedDriver(driver.cluster)
    successor.init(keep=True)
    assert successor.complete(state) is TransactionResult.COMMITTED
    successor.init(refuse_open=True)
    successor.begin(b"b")
    successor.commit()
    assert committed(driver) == [b"a", b"b"]


@pytest.mark.parametrize("matches", [True, False])
def test_a_kept_transaction_is_completed_by_its_state(matches: bool) -> None:
    driver = ready()
    driver.begin(b"a")
    state = driver.prepare()
    successor = SimulatedDriver(driver.cluster)
    successor.init(keep=True)
    assert successor.engine.ongoing == state.producer
    with pytest.raises(InvalidTransactionStateError):
        successor.begin()
    ended = successor.complete(state if matches else PreparedTxnState())
    assert ended is (TransactionResult.COMMITTED if matches else TransactionResult.ABORTED)
    assert committed(driver) == ([b"a"] if matches else [])
    successor.init()
    successor.begin(b"b")
    successor.commit()
    assert committed(driver)[-1:] == [b"b"]


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_no_transaction_is_ended_if_none_was_kept(verb: str) -> None:
    driver = ready()
    driver.init_kept = SimulatedDriver(driver.cluster)  # type: ignore[attr-defined]
    successor = SimulatedDriver(driver.cluster)
    successor.init(keep=True)
    driver.cluster.requests.clear()
    assert getattr(successor, verb)() is TransactionResult.NOTHING
    assert driver.cluster.requests == []


def test_a_state_with_an_anchor_is_not_judged_by_the_identity_alone() -> None:
    driver = ready()
    with pytest.raises(InvalidTransactionStateError, match="anchor"):
        driver.engine.complete_transaction(PreparedTxnState(ProducerIdentity(1, 2), Anchor("t", 0, 5)), 0.0)


def test_without_two_phase_commit_init_is_plain_and_times_out() -> None:
    driver = SimulatedDriver(SimulatedCluster(), two_phase_commit=False, transaction_timeout_ms=5000)
    driver.init()
    assert driver.cluster.entry() is not None
    assert driver.cluster.entry().timeout_ms == 5000  # type: ignore[union-attr]


def test_a_transaction_without_two_phase_commit_is_prepared_and_completed_by_its_state() -> None:
    """KIP-939 answers INVALID_TXN_STATE; docs/decisions/0022 says why this client does not."""
    driver = SimulatedDriver(SimulatedCluster(), two_phase_commit=False, transaction_timeout_ms=5000)
    driver.init()
    for record, decided, ending in (
        (b"a", True, TransactionResult.COMMITTED),
        (b"b", False, TransactionResult.ABORTED),
    ):
        driver.begin(record)
        state = driver.prepare()
        assert state
        with pytest.raises(InvalidTransactionStateError):
            driver.begin(b"late")
        assert driver.complete(state if decided else PreparedTxnState()) is ending
    assert driver.cluster.logs[T0].committed() == [b"a"]


def test_where_keeping_is_not_supported_init_is_plain() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.prepare()
    successor = SimulatedDriver(driver.cluster)
    refuse(driver, ApiKey.INIT_PRODUCER_ID, ErrorCode.UNSUPPORTED_VERSION)
    driver.cluster.requests.clear()
    successor.init()
    assert driver.cluster.requests == [ApiKey.FIND_COORDINATOR, *[ApiKey.INIT_PRODUCER_ID] * 2]
    assert committed(driver) == []
    refuse(driver, ApiKey.INIT_PRODUCER_ID, ErrorCode.UNSUPPORTED_VERSION)
    with pytest.raises(TwoPhaseCommitUnavailableError):
        SimulatedDriver(driver.cluster).init(keep=True)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TwoPhaseCommitUnavailableError),
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, KafkaRefusedError),
    ],
)
def test_an_init_that_is_refused_says_why(code: ErrorCode, kind: type[DualWriteError]) -> None:
    driver = SimulatedDriver(SimulatedCluster())
    refuse(driver, ApiKey.INIT_PRODUCER_ID, code)
    with pytest.raises(kind, match=code.name):
        driver.init()
    assert driver.engine.state is ProducerState.FAILED


def test_a_cluster_without_tv2_is_refused_by_name() -> None:
    cluster = SimulatedCluster()
    cluster.is_tv2 = False
    with pytest.raises(ConfigurationError, match=r'transaction.version is 0.*producer="librdkafka"'):
        SimulatedDriver(cluster).init()


def test_a_broker_without_init_v6_has_no_two_phase_commit() -> None:
    driver = SimulatedDriver(SimulatedCluster())
    ranges = {**TV2_VERSIONS.ranges, ApiKey.INIT_PRODUCER_ID: TV2_VERSIONS.ranges[ApiKey.END_TXN]}
    operation = driver.engine.init_transactions(0.0)
    (opening,) = driver.engine.step(0.0)
    assert isinstance(opening, Open)
    driver.engine.opened(opening.endpoint, Versions(ranges, TV2_VERSIONS.features, 1), 0.0)
    driver.engine.metadata.coordinators[CoordinatorOf(1, TXN_ID)] = opening.endpoint
    driver.engine.step(0.0)
    with pytest.raises(TwoPhaseCommitUnavailableError, match="offers versions 0 to 5"):
        operation.outcome()
