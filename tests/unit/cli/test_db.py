"""``dualwrite db``: what it prints and what it exits with."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from dualwrite import schema
from dualwrite.cli.main import main


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'orders.db'}"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["db", *words])
    printed = capsys.readouterr()
    return code, printed.out.strip(), printed.err.strip()


def test_upgrade_current_and_downgrade_move_between_versions(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "upgrade", "--db", url) == (0, schema.versions()[-1], "")
    assert said(capsys, "current", "--db", url) == (0, schema.versions()[-1], "")
    assert said(capsys, "downgrade", "--db", url, "0001") == (0, "0001", "")
    removed = "removed all tables of dualwrite, which had version 0001"
    assert said(capsys, "downgrade", "--db", url, "base") == (0, removed, "")
    assert said(capsys, "downgrade", "--db", url, "base") == (0, "no tables yet; run: dualwrite db upgrade", "")


def test_the_rows_that_would_be_lost_are_one_line_and_yes_drops_them(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "upgrade", "--db", url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO kafka_consumer_offset VALUES ('g', 't', 0, 1, NULL, '2026-01-01', NULL)"))
    engine.dispose()
    code, out, error = said(capsys, "downgrade", "--db", url, "0001")
    assert (code, out) == (2, "")
    assert error.startswith(
        "dualwrite: a downgrade to 0001 would drop offsets of consumers, which would read again (1): "
    )
    assert "\n" not in error
    assert said(capsys, "downgrade", "--db", url, "0001", "--yes") == (0, "0001", "")


def test_the_database_to_take_back_must_be_there(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = said(capsys, "downgrade", "--db", url, "base")
    assert code == 2
    assert "there is no database file" in error


def test_the_sql_of_every_step_is_printed_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, all_of_it, _ = said(capsys, "sql", "--dialect", "postgresql")
    assert code == 0
    assert all_of_it.startswith("BEGIN;")
    assert all_of_it.endswith("COMMIT;")
    assert all_of_it.count("CREATE TABLE") == 10
    _, second, _ = said(capsys, "sql", "--dialect", "postgresql", "--since", "0001", "0002")
    assert second.count("CREATE TABLE") == 3
    _, back, _ = said(capsys, "sql", "--dialect", "mysql", "--since", "0002", "0001")
    assert back.count("DROP TABLE") == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--dialect", "oracle"], "database 'oracle' is not supported"),
        (["--dialect", "sqlite", "0815"], "there is no version '0815'"),
        (["--dialect", "sqlite", "--since", "0815"], "there is no version '0815'"),
    ],
)
def test_an_error_of_sql_is_one_line(words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(capsys, "sql", *words)
    assert (code, out) == (2, "")
    assert wrong in error
