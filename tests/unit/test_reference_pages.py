"""The pages that are drawn from the code say what the code says."""

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["states", "protocol", "metrics"])
def test_a_drawn_page_is_up_to_date(page: str) -> None:
    drawn = runpy.run_path(str(DOCS / "draw.py"))[f"{page}_page"]()
    assert (DOCS / "reference" / f"{page}.md").read_text() == drawn, "run: python docs/draw.py"


def test_every_state_of_both_machines_is_drawn() -> None:
    page = (DOCS / "reference" / "states.md").read_text()
    for name in ("LEAVING_DOUBT", "DATABASE_FAILED", "PREPARE_COMMIT", "COMPLETE_ABORT"):
        assert name in page
