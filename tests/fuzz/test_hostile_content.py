"""The fuzz targets for batches, texts, inputs and state rows, for some seconds; ``python -m tests.fuzz`` runs them for
longer. A finding is repeated by the call that the message begins with."""

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker.core import record_rules
from dualwrite.errors import ConfigurationError, InputError
from dualwrite.ids import PreparedTxnState
from dualwrite.loader import rows as loader_rows
from tests.fuzz import batches, guided, states
from tests.fuzz.batches import fuzz_batches
from tests.fuzz.inputs import fuzz_inputs
from tests.fuzz.rows import fuzz_rows, row_site
from tests.fuzz.states import fuzz_states, read_state


def outcomes(target: Callable[[int], str], number: int, first_seed: int = 0) -> Counter[str]:
    return Counter(target(seed) for seed in range(first_seed, first_seed + number))


def test_hostile_batches_are_read_or_refused() -> None:
    found = outcomes(fuzz_batches, 100)
    assert {"batches: read, read, read", "batches: refused, refused, read"} <= set(found)


def test_a_text_is_read_as_itself_or_refused() -> None:
    assert set(outcomes(fuzz_states, 1000)) == {"states: read", "states: refused"}


def test_hostile_input_gives_rows_or_an_error_with_its_line() -> None:
    found = outcomes(fuzz_inputs, 150)
    assert {name.rpartition(": ")[0] for name in found} == {"inputs: csv", "inputs: tsv", "inputs: jsonl"}
    assert {"inputs: csv: rows", "inputs: csv: refused", "inputs: jsonl: rows"} <= set(found)


@pytest.mark.slow
def test_a_row_that_was_edited_by_hand_commits_nothing_and_no_command_fails_with_a_traceback() -> None:
    with row_site() as site:
        found = outcomes(lambda seed: fuzz_rows(seed, site), 40)
    assert sum("edited" in name for name in found) > 5


# --- the fuzzers themselves


@pytest.mark.parametrize("name", guided.TARGETS)
def test_the_targets_of_atheris_take_any_bytes(name: str) -> None:
    target = guided.target_of(name)
    for seed in range(20):
        target(random.Random(seed).randbytes(seed * 3))


def test_without_atheris_the_guided_mode_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    monkeypatch.setattr("sys.argv", ["guided", "states", "--corpus", str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="atheris"):
        guided.main()


def first_finding(target: Callable[[int], str]) -> str:
    for seed in range(2000):
        try:
            target(seed)
        except AssertionError as error:
            return str(error)
    return "nothing was found"


def test_a_reader_of_batches_with_an_error_of_another_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherError(ValueError):
        """What a reader did not mean to raise."""

    monkeypatch.setattr(batches, "MalformedBatchError", OtherError)
    assert "MalformedBatchError" in first_finding(fuzz_batches)


def test_a_state_that_is_read_leniently_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class LenientState:
        """What reads spaces away."""

        parse = PreparedTxnState.parse

        def __new__(cls, text: Any, *more: Any) -> Any:
            return PreparedTxnState(text.strip() if isinstance(text, str) else text, *more)

    monkeypatch.setattr(states, "PreparedTxnState", LenientState)
    assert "was read as" in first_finding(fuzz_states)


def test_an_input_whose_error_has_no_line_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: Any) -> Any:
        raise InputError("")

    monkeypatch.setattr(loader_rows.RowTyper, "row", silent)
    assert "no message" in first_finding(fuzz_inputs)


def test_a_broker_that_keeps_what_it_cannot_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_rules, "iterate_spans", lambda *_: [])
    assert "the broker keeps what it cannot read" in first_finding(fuzz_batches)


# --- findings


@pytest.mark.parametrize(
    "text", [" 4000:7", "4000:7 ", "4000:7\n", "+4000:7", "04000:7", "4_000:7", "\u0664\u0660:7", "4000:7::0:0"]
)
def test_a_text_that_str_did_not_write_is_no_state(text: str) -> None:
    """An edited row that only resembles the state of an open transaction names none: recovery would commit it."""
    assert read_state(text) == "states: refused"
    with pytest.raises(ConfigurationError, match="prepared transaction state"):
        PreparedTxnState(text)


@pytest.mark.parametrize("text", ["4000:7:t:2147483648:0", "4000:7:t:0:9223372036854775808", "9223372036854775808:0"])
def test_a_number_that_kafkas_types_cannot_hold_is_no_state(text: str) -> None:
    assert read_state(text) == "states: refused"
