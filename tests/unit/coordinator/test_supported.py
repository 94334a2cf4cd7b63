"""Each supported database has what none can have by default; docs/decisions/0011 says what that is."""

import inspect
import re
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.sql.dialects.base import Database, ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import DATABASES, EXAMPLE_URLS, SUPPORTED, database_at

PAGE = Path(__file__).parents[3] / "docs" / "decisions" / "0011-databases.md"


def without_default() -> set[str]:
    """The members of Database that have no value, or raise NotImplementedError."""
    bare = {name for kind in Database.__mro__ for name in inspect.get_annotations(kind)}
    methods = inspect.getmembers(Database, inspect.isfunction)
    missing = {name for name, method in methods if "raise NotImplementedError" in inspect.getsource(method)}
    return {name for name in bare if not hasattr(Database, name)} | missing


@pytest.mark.parametrize(
    ("option", "meaning"),
    [("--read-only", ErrorMeaning.READ_ONLY), ("--super-read-only", ErrorMeaning.READ_ONLY), ("--skip-name", None)],
)
def test_a_server_in_read_only_mode_is_known_by_the_name_of_the_option(
    option: str, meaning: ErrorMeaning | None
) -> None:
    """MySQL and MariaDB have one number for all options that prevent a statement."""
    said = f"The MySQL server is running with the {option} option so it cannot execute this statement"
    error = DBAPIError("UPDATE", {}, Exception(1290, said))
    assert SUPPORTED["mysql"].meaning_of(error) is meaning


@pytest.mark.parametrize("database", DATABASES, ids=lambda database: database.title)
def test_a_database_has_every_member_that_has_no_default(database: Database) -> None:
    own = {name for kind in type(database).__mro__ if kind not in Database.__mro__ for name in vars(kind)}
    assert without_default() - own == set()


def test_the_page_names_the_members_without_a_default() -> None:
    _, _, rest = PAGE.read_text().partition("These members have no default:")
    table, _, _ = rest.partition("These have a default")
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == without_default()


def test_the_page_names_members_that_exist() -> None:
    _, _, rest = PAGE.read_text().partition("These have a default")
    table, _, _ = rest.partition("Two modules depend on the driver")
    second_cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    names = {name for cell in second_cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(names) > 15
    assert [name for name in sorted(names) if not hasattr(Database, name)] == []


@pytest.mark.parametrize("url", EXAMPLE_URLS)
def test_an_example_is_a_url_of_its_database(url: str) -> None:
    assert database_at(make_url(url)).example_url == url


def test_a_database_of_two_names_is_listed_once() -> None:
    assert len(DATABASES) == len({id(database) for database in SUPPORTED.values()}) == len(SUPPORTED) - 1
