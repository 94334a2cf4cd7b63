"""The oracle of the simulation names each anomaly, and finds none where both sides agree."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.simulation.oracle import Ended, anomaly_in, name_of

SOUND = Ended(
    rows=["u0.0", "u1.1"],
    records=["u0.0/0", "u0.0/1", "u1.1/0"],
    withdrawn=[],
    records_of={"u0.0": 2, "u1.0": 1, "u1.1": 1},
    answers={"u0.0": "SUCCEEDED", "u1.0": "ROLLED_BACK", "u1.1": "SUCCEEDED"},
    units_left=0,
    unstable=[],
    is_read=True,
    outcomes=[],
    unrecorded=[],
    failures=[],
    waiting=[],
    broken=[],
)


def test_where_both_sides_agree_there_is_no_anomaly() -> None:
    assert anomaly_in(SOUND) == ""


def test_a_unit_that_was_killed_may_be_on_both_sides_or_on_neither() -> None:
    answers = {**SOUND.answers, "u0.0": "killed", "u2.0": "killed"}
    assert anomaly_in(replace(SOUND, answers=answers)) == ""


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("aborted read", {"rows": ["u0.0"], "answers": {"u1.1": "killed"}}),
        ("torn transaction", {"records": ["u0.0/0", "u1.1/0"]}),
        ("torn transaction", {"rows": ["u1.1"], "records": ["u0.0/0", "u1.1/0"], "answers": {}}),
        ("lost write", {"records": ["u0.0/0", "u0.0/1"]}),
        ("lost write", {"rows": ["u0.0"], "records": ["u0.0/0", "u0.0/1"]}),
        ("lost write", {"withdrawn": ["u3.0/0"]}),
        ("duplicate write", {"records": [*SOUND.records, "u1.1/0"]}),
        ("duplicate write", {"rows": [*SOUND.rows, "u1.0"], "records": [*SOUND.records, "u1.0/0"]}),
        ("duplicate write", {"answers": {"u0.0": "ROLLED_BACK"}}),
        ("duplicate write", {"answers": {"u0.0": "never began"}}),
        ("dirty read", {"broken": ["dirty read: a reader gets u9.0/0"]}),
        ("stuck", {"unstable": ["partition 1"]}),
        ("stuck", {"is_read": False}),
        ("false alarm", {"outcomes": [("a-0", "heuristic commit")]}),
        ("lost write", {"unrecorded": ["a-0"]}),
        ("deadlock", {"waiting": ["1:worker-0"]}),
        ("deadlock", {"units_left": 1}),
        ("crash", {"failures": ["1:worker-0: KeyError()"]}),
        ("two owners", {"broken": ["two owners: a-0"]}),
    ],
)
def test_each_anomaly_has_its_name(name: str, changes: dict[str, Any]) -> None:
    assert name_of(anomaly_in(replace(SOUND, **changes))) == name
