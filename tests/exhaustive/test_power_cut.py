"""Transactions under power cuts: the search finds nothing, and finds each rule that is broken on purpose."""

from collections.abc import Callable

import pytest

from dualwrite.broker.core import transaction_recovery
from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionVersion
from dualwrite.wire.error_codes import ErrorCode
from tests.support.breaking.broker import IDENTITY_ERROR
from tests.support.broker.transactions import TV1, TV2
from tests.support.exhaustive.power_cut import power_cut
from tests.support.exhaustive.states import BrokenPropertyError, explore

VERSIONS = [(TV2, TV2), (TV1, TV2), (TV1, TV1)]


@pytest.mark.slow_cases
@pytest.mark.parametrize("versions", VERSIONS)
def test_after_a_power_cut_at_any_step_every_promise_holds(
    versions: tuple[TransactionVersion, TransactionVersion],
) -> None:
    model = power_cut(versions, cuts=2, units=2)
    found = explore(model, depth=12)
    assert [name for name in (*model.sometimes, *model.events) if not found.seen[name]] == []


Breach = Callable[[pytest.MonkeyPatch], None]


def no_marker_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_recovery, "lacks_marker", lambda decision, partition: False)


def no_marker_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_recovery, "lost_marker", lambda decision, partition: False)


def no_join_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_recovery, "lost_join", lambda entry, producer, name: False)


def every_epoch_is_its_transactions_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionRecorded, "owns_epoch", property(lambda entry: True))


def readers_pass_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionState, "last_stable_offset", property(lambda state: state.high_watermark))


def nobody_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    IDENTITY_ERROR.broken_by(monkeypatch, lambda entry, producer: ErrorCode.NONE)


@pytest.mark.parametrize(
    ("breach", "versions"),
    [
        (no_marker_is_missed, (TV1, TV1)),
        (no_marker_is_lost, (TV2, TV2)),
        (no_join_is_lost, (TV2, TV2)),
        (every_epoch_is_its_transactions_own, (TV1, TV1)),
        (readers_pass_open_transactions, (TV2, TV2)),
        (nobody_is_fenced, (TV2, TV2)),
    ],
)
def test_the_search_finds_a_broken_rule(
    monkeypatch: pytest.MonkeyPatch, breach: Breach, versions: tuple[TransactionVersion, TransactionVersion]
) -> None:
    breach(monkeypatch)
    with pytest.raises(BrokenPropertyError, match=r"(?s)power-cut: .*the shortest history, of \d+ steps"):
        explore(power_cut(versions, cuts=1, units=2), depth=16)
