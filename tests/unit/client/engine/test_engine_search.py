"""The native producer's engine and the broker's real rules, searched through everything that a few faults can do.

Always: a unit of work that was decided ends as it was decided, and nothing else does; no record is there twice, none is
missing, and they are in order. Sometimes: each fate that a request can have, each kind of crash, and what they lead to.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dualwrite.broker.facts.transactions import TransactionStatus
from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.engine import transaction_requests
from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.client.engine.coordinator_request import CoordinatorRequest, init_request
from dualwrite.client.engine.transaction_state import TransactionManager, TransactionResult
from dualwrite.client.protocol.requests import CommittedOffset, GroupMember
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import FencedError, KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import MAX_PRODUCER_EPOCH, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import recorded
from tests.support.client.forgetful import forgetful
from tests.support.client.simulated_cluster import FATES, RequestFate, SimulatedCluster, SimulatedDriver
from tests.support.state_search import Chooser, every_run

PARTITIONS = 2
UNITS = 2
ENDS = (
    "committed",
    "aborted before prepare",
    "aborted after prepare",
    "crash before prepare",
    "crash after prepare",
    "crash after the decision",
)
"""How a unit of work ends, if nothing else happens to it."""


class EngineSearchApplication:
    """A process that does units of work, and its successors: the row is what its database holds."""

    def __init__(self, chooser: Chooser, cluster: SimulatedCluster, seen: set[Any]) -> None:
        self.chooser = chooser
        self.cluster = cluster
        self.seen = seen
        self.row = PreparedTxnState()
        self.decided: list[int] = []
        self.driver = self.started()

    def started(self) -> SimulatedDriver:
        """A new process, which recovers what the one before left, and again if it is disturbed."""
        while True:
            driver = SimulatedDriver(self.cluster, batch_records=1)
            try:
                driver.init(keep=True)
                self.seen.add(("kept", bool(driver.engine.ongoing)))
                self.seen.add(("completed", driver.complete(self.row)))
                driver.init()
            except (FencedError, KafkaUnavailableError) as error:  # fenced by a copy, of its own even, that came late
                self.seen.add(f"{type(error).__name__} while recovering")
                continue
            return driver

    def restart(self, why: str) -> None:
        """The process dies."""
        self.seen.add(why)
        self.driver = self.started()

    def work(self, unit: int) -> None:
        """One unit of work; an application that gets an error aborts, or drops the producer and recovers."""
        ends = ENDS[self.chooser.choose(len(ENDS))]
        self.seen.add(ends)
        driver = self.driver
        try:
            driver.begin()
            offsets = [CommittedOffset("in", 0, unit)]
            driver.run(driver.engine.send_offsets_to_transaction(offsets, GroupMember("g"), driver.now))
            driver.produce(b"%d a" % unit, partition=0)
            driver.produce(b"%d b" % unit, b"%d c" % unit, partition=1)
            if ends.endswith("before prepare"):
                driver.turn()  # what is full is sent
                self.give_up(ends)
                return
            state = driver.prepare()
            self.seen.add(driver.engine.state)
            if ends.endswith("after prepare"):
                self.give_up(ends)
                return
            self.row = state
            self.decided.append(unit)
            if ends == "crash after the decision":
                self.restart(ends)
                return
            assert driver.complete(state) is TransactionResult.COMMITTED
        except (FencedError, KafkaUnavailableError, PrepareFailedError) as error:
            self.seen.add(driver.engine.state)
            self.seen.add(type(error).__name__)
            self.give_up("aborted" if driver.engine.state is ProducerState.ABORTABLE else "crash")

    def give_up(self, how: str) -> None:
        """The process aborts what it has begun, or dies; it dies too if it cannot abort."""
        if how.startswith("aborted"):
            try:
                self.seen.add(self.driver.abort())
                return
            except (FencedError, KafkaUnavailableError) as error:
                self.seen.add(f"{type(error).__name__} while aborting")
        self.restart(how)

    def check(self) -> None:
        """Everything is over: what is there is what was decided."""
        self.cluster.quiesce()
        self.driver = self.started()
        for partition, parts in enumerate(([b"a"], [b"b", b"c"])):
            log = self.cluster.logs.get(TopicPartition("t", partition))
            wanted = [b"%d %s" % (unit, part) for unit in self.decided for part in parts]
            assert (log.committed() if log else []) == wanted, (partition, self.decided)
            assert not log or not log.state.open_transactions
        ended = self.cluster.logs.get(TopicPartition("__consumer_offsets", 0))
        commits = [one for one in ended.entries if one.marker is Marker.COMMIT] if ended else []
        assert len(commits) == len(self.decided)


def search(faults: int, seen: set[Any], epoch: int | None = None) -> int:
    def scenario(chooser: Chooser) -> None:
        cluster = SimulatedCluster(chooser.choose, partitions=PARTITIONS)
        cluster.gives_hints = epoch is None
        if epoch is not None:
            cluster.begin_at(recorded(TransactionStatus.EMPTY, ProducerIdentity(7, epoch)))
        application = EngineSearchApplication(chooser, cluster, seen)
        for unit in range(UNITS):
            application.work(unit)
        application.check()
        seen.update(cluster.seen)
        identities = {entry.producer for log in cluster.logs.values() for entry in log.entries}
        seen.add(("producer ids", len({identity.producer_id for identity in identities})))

    return every_run(scenario, faults)


def fates_of(*keys: ApiKey) -> set[tuple[ApiKey, RequestFate]]:
    return {(key, fate) for key in keys for fate in FATES[key]}


@pytest.mark.slow
def test_with_one_fault_every_decided_unit_is_there_once_and_no_other() -> None:
    seen: set[Any] = set()
    assert search(1, seen) > 50
    assert fates_of(*FATES) <= seen
    assert {
        *ENDS,
        ProducerState.PREPARED,
        ProducerState.ABORTABLE,
        ProducerState.FAILED,
        TransactionResult.ABORTED,
        ("kept", True),
        ("completed", TransactionResult.COMMITTED),
        ("completed", TransactionResult.ABORTED),
    } <= seen
    assert {"duplicate", "concurrent", "FencedError", "PrepareFailedError"} <= seen
    assert (ApiKey.PRODUCE, "answered", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) in seen
    assert (ApiKey.PRODUCE, "answered", ErrorCode.NOT_LEADER_OR_FOLLOWER) in seen
    assert (ApiKey.END_TXN, "answered", ErrorCode.NOT_COORDINATOR) in seen
    assert (ApiKey.END_TXN, "late", ErrorCode.NONE) in seen
    assert (ApiKey.END_TXN, "late", ErrorCode.PRODUCER_FENCED) in seen


@pytest.mark.slow
def test_with_two_faults_every_decided_unit_is_there_once_and_no_other() -> None:
    seen: set[Any] = set()
    assert search(2, seen) > 1500
    assert (ApiKey.PRODUCE, "late", ErrorCode.INVALID_PRODUCER_EPOCH) in seen


@pytest.mark.slow_cases
@pytest.mark.parametrize("epoch", range(MAX_PRODUCER_EPOCH - 6, MAX_PRODUCER_EPOCH))
def test_with_one_fault_around_the_highest_epoch_nothing_is_lost_or_doubled(epoch: int) -> None:
    seen: set[Any] = set()
    search(1, seen, epoch)
    assert ("producer ids", 1) in seen
    assert (("producer ids", 2) in seen) == (epoch < MAX_PRODUCER_EPOCH - 2)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(st.integers(0, 1 << 16), max_size=120))
def test_with_any_number_of_faults_every_decided_unit_is_there_once_and_no_other(choices: list[int]) -> None:
    remaining = list(choices)
    chooser = Chooser([])
    chooser.choose = lambda options: remaining.pop() % options if remaining else 0  # type: ignore[method-assign]
    cluster = SimulatedCluster(chooser.choose, partitions=PARTITIONS)
    cluster.gives_hints = len(choices) % 2 == 0
    seen: set[Any] = set()
    application = EngineSearchApplication(chooser, cluster, seen)
    for unit in range(4):
        application.work(unit)
    remaining.clear()
    application.check()
    for what in seen:
        event(str(what))


def plain_init(settings: ProducerSettings, keeps: bool, answer: Callable[[Message], None]) -> CoordinatorRequest:
    call = init_request(settings, keeps, answer)
    return call if keeps or call.fallback is None else call.fallback


@pytest.mark.parametrize(
    ("where", "what", "broken"),
    [
        (transaction_requests, "init_request", plain_init),  # its late copy aborts what was prepared after it
        (TransactionManager, "commits", lambda self, before, state: True),
        (TransactionManager, "commits", lambda self, before, state: False),
        (RecordAccumulator, "send_again", forgetful),
    ],
)
def test_a_protocol_that_is_broken_is_noticed(
    where: Any, what: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, broken)
    with pytest.raises(AssertionError, match="with the faults") as found:
        search(1, set())
    assert isinstance(found.value.__cause__, AssertionError), (
        "the oracle says so, and not an error of the control's own"
    )
