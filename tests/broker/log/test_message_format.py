"""KIP-98's table of space: the bytes on disk are the final KIP's figures, and the page says what is measured."""

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "message-format.md"
FINAL = {1: 60, 3: 74, 10: 123, 50: 403, 100: 753}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "message_format.py"))


@pytest.fixture(scope="module")
def measured(script: dict[str, Any]) -> list[Any]:
    rows: list[Any] = script["measure"]()
    return rows


def test_the_bytes_on_disk_are_the_kip_s_figures_and_the_fields_that_it_leaves_out(measured: list[Any]) -> None:
    assert {row.messages: row.counted for row in measured} == FINAL
    for row in measured:
        assert row.on_disk == FINAL[row.messages] + 8 + 3 * row.messages + max(0, row.messages - 64)
        assert row.old == 34 * row.messages


def test_the_page_says_what_the_script_measures(script: dict[str, Any], measured: list[Any]) -> None:
    assert PAGE.read_text() == script["page"](measured), "run: python benchmarks/message_format.py --write " + str(PAGE)
