"""CONTRIBUTING.md names the folders and make's targets that there are, and limits that the rules have."""

import re
from pathlib import Path

import pytest

from tests.support.layers import LONGEST_FILE, LONGEST_FUNCTION, MOST_FILES

HOME = Path(__file__).parents[3]
PAGE = (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (HOME / "Makefile").read_text(encoding="utf-8")
MADE = {
    ".git",
    ".venv",
    "venv",
    "build",
    "dist",
    "site",
    "benchmark-report",
    "orders-broker",
    "orders-example",
    "outbox-example",
}
"""What programs make beside the sources; .gitignore has it."""


def targets() -> set[str]:
    found = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    return set(found[1].split())


def test_every_folder_is_in_the_layout() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)/` \|", PAGE, re.MULTILINE))
    folders = {path.name for path in HOME.iterdir() if path.is_dir() and not path.name.startswith(".")} - MADE
    assert listed == {folder for folder in folders if not folder.startswith("_") and not folder.endswith(".egg-info")}


def test_every_target_that_is_named_is_makes() -> None:
    named = set(re.findall(r"`make ([a-z-]+)", PAGE))
    assert named >= {"check", "dist", "lowest", "base", "highest", "slow"}
    assert named - targets() == set()


def test_makes_help_names_every_target() -> None:
    helped = set(re.findall(r"make ([a-z-]+)", MAKEFILE.partition("\nhelp:\n")[2].partition("\n\n")[0]))
    assert targets() - helped == {"help"}


@pytest.mark.parametrize(
    ("thing", "limit"), [("file has at most", LONGEST_FILE), ("function", LONGEST_FUNCTION), ("folder", MOST_FILES)]
)
def test_the_limits_are_those_of_the_rules(thing: str, limit: int) -> None:
    assert re.search(rf"{thing} {limit}\b", PAGE)
