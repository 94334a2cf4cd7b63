"""Commands that are printed can be run in a shell as they are, but for the password."""

import shlex
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDualWrite, DatabaseNotReadyError
from dualwrite.cli.main import main
from dualwrite.coordinator.sql.dialects.url_text import url_text
from dualwrite.coordinator.sql.engine.shown_url import command_on, shown_url
from dualwrite.coordinator.sql.own_tables import with_schema
from tests.support.coordinator.aio.async_dual_writes import CONFIG, run
from tests.support.coordinator.fake_kafka import FakeKafka


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///shop.db", "--db sqlite:///shop.db"),
        ("sqlite:///my shop.db", "--db 'sqlite:///my shop.db'"),
        ("postgresql+psycopg://h/x?a=1&b=2", "--db 'postgresql+psycopg://h/x?a=1&b=2'"),
        ("mysql+pymysql://u:secret@h/x", "--db 'mysql+pymysql://u:***@h/x' (with the password in place of ***)"),
        (
            "postgresql+psycopg://u:secret@h/x?sslpassword=hunter2&a=1",
            "--db 'postgresql+psycopg://u:***@h/x?a=1' (with the password in place of ***)"
            " (with sslpassword in its query)",
        ),
        ("sqlite+aiosqlite:///shop.db", "--db sqlite:///shop.db"),
        ("postgresql+asyncpg://u@h/x", "--db postgresql+psycopg://u@h/x"),
        ("postgresql+psycopg_async://u@h/x", "--db postgresql+psycopg://u@h/x"),
        ("mysql+aiomysql://u@h/x", "--db mysql+pymysql://u@h/x"),
        ("mariadb+asyncmy://u@h/x", "--db mariadb+pymysql://u@h/x"),
    ],
)
def test_a_url_is_quoted_and_its_driver_blocks(url: str, shown: str) -> None:
    assert shown_url(make_url(url)) == shown


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////no/such/directory/shop.db?uri=true&password=hunter2",
        "sqlite://?password=hunter2",
        "mysql+pymysql://h/?password=hunter2",
        "postgresql+psycopg://127.0.0.1:1/x?password=hunter2&connect_timeout=2",
    ],
)
def test_no_command_shows_a_password_of_a_urls_query(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "current", "--db", url]) == 2
    shown = capsys.readouterr()
    assert "hunter2" not in shown.out + shown.err
    assert shown.err.startswith("dualwrite: ")


def test_a_url_as_a_text_has_no_password() -> None:
    url = make_url(
        "postgresql+psycopg://u:hunter1@h/x?sslpassword=hunter2&a=1&PASSWORD=hunter3&oauth_client_secret=hunter4"
    )
    assert url_text(url) == "postgresql+psycopg://u:***@h/x?a=1"


def test_the_schema_is_part_of_the_command() -> None:
    engine = with_schema(create_engine("postgresql+psycopg://h/x"), "my tables")
    assert command_on(engine, "db upgrade") == "dualwrite db upgrade --db postgresql+psycopg://h/x --schema 'my tables'"


def test_the_command_in_an_async_engines_error_creates_its_tables(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a b&c.db'}")

    async def first_use() -> str:
        async with AsyncDualWrite(engine, CONFIG, application="a", participant=FakeKafka().participant) as dual_write:
            with pytest.raises(DatabaseNotReadyError) as error:
                await dual_write.recover()
        await engine.dispose()
        return str(error.value)

    program, *words = shlex.split(run(first_use()).partition("run: ")[2])
    assert (program, main(words)) == ("dualwrite", 0)
