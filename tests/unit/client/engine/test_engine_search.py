"""The native producer's engine and the broker's real rules, searched through everything that a few faults can do.

Always: a unit of work that was decided ends as it was decided, and nothing else does; no record is there twice, none is
missing, and they are in order. Sometimes: each fate that a request can have, each kind of crash, and what they lead to.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.engine import transaction_requests
from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.client.engine.coordinator_request import CoordinatorRequest, init_request
from dualwrite.client.engine.transaction_state import TransactionManager, TransactionResult
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.ids import MAX_PRODUCER_EPOCH
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.engine_search import ENDS, PARTITIONS, EngineSearchApplication, engine_scenario
from tests.support.client.forgetful import forgetful
from tests.support.client.simulated_cluster import FATES, RequestFate, SimulatedCluster
from tests.support.exhaustive.histories import Chooser, run_histories


def search(faults: int, seen: set[Any], epoch: int | None = None) -> int:
    """Every combination of ``faults`` faults; the number of histories."""
    found = run_histories(engine_scenario(seen, epoch), faults=faults)
    assert found.faults == faults
    return found.histories


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
