"""State rows that were edited by hand: each command names the row and the column in one line, and ends nothing."""

import sqlite3
from typing import Any

import pytest

from dualwrite.coordinator.sql.tables import kafka_transaction_state
from tests.support.operations.places import OperationsSite

COMMANDS = [("transactions", "list"), ("recover", "--application")]


def edit(site: OperationsSite, column: str, value: Any) -> None:
    """Write ``value`` past SQLAlchemy, into the row of slot 0."""
    connection = sqlite3.connect(site.url.removeprefix("sqlite:///"))
    with connection:
        connection.execute(f"UPDATE {kafka_transaction_state.name} SET {column} = ?", (value,))
    connection.close()


@pytest.mark.parametrize("words", COMMANDS, ids=["list", "recover"])
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("updated_at", "yesterday", "updated_at is 'yesterday', no moment"),
        ("updated_at", 17, "updated_at is 17, no moment"),
        ("fencing_token", "x", "fencing_token is 'x', no number"),
        ("fencing_token", 2**63 - 1, "fencing_token is 9223372036854775807, no fencing token"),
        ("fencing_token", 0, "fencing_token is 0, no fencing token"),
        ("owner", b"\xff", r"owner is b'\xff', no text"),
        ("prepared_txn_state", " 4000:7", "prepared transaction state ' 4000:7': expected producerId:epoch"),
    ],
)
def test_a_value_that_dualwrite_did_not_write_is_named_and_nothing_is_ended(
    site: OperationsSite, words: tuple[str, ...], column: str, value: Any, said: str
) -> None:
    site.leave("one", "STORE_STATE")
    before = site.described()
    assert before is not None
    edit(site, column, value)
    result = site.run(*words, *[site.application] * (words[0] == "recover"))
    assert result.code in (1, 2)
    assert said in result.err
    assert len(result.err.splitlines()) == 1
    described = site.described()
    assert described is not None
    assert described.state == before.state == "Ongoing"


def test_a_row_of_another_application_with_a_longer_name_disturbs_no_start(site: OperationsSite) -> None:
    site.write("one")
    connection = sqlite3.connect(site.url.removeprefix("sqlite:///"))
    with connection:
        names = [column.name for column in kafka_transaction_state.columns if column.name != "transactional_id"]
        listed = ", ".join(names)
        connection.execute(
            f"INSERT INTO {kafka_transaction_state.name} (transactional_id, {listed}) "
            f"SELECT '{site.application}-eu-0', {listed} FROM {kafka_transaction_state.name}"
        )
        connection.execute(
            f"UPDATE {kafka_transaction_state.name} SET fencing_token = 'x' WHERE transactional_id LIKE '%-eu-0'"
        )
    connection.close()
    assert site.run("recover", "--application", site.application).code == 0
    listed_rows = site.run("transactions", "list", "--application", site.application)
    assert listed_rows.code == 0, listed_rows.err
    site.write("two")


def test_letters_that_control_a_terminal_are_shown_with_escapes(site: OperationsSite) -> None:
    site.write("one")
    edit(site, "owner", "\x1b[31mred")
    edit(site, "lease_expires_at", "9999-01-01 00:00:00.000000")
    edit(site, "database_id", "\x1b[31m")
    for words in (("transactions", "list"), ("doctor",)):
        result = site.run(*words)
        assert "\x1b" not in result.out
        assert r"\x1b[31m" in result.out
