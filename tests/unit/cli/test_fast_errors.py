"""A mistake on the command line is reported before SQLAlchemy and a Kafka client are imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loader.input_files import csv_text, write_input

TARGET = ("--table", "flights", "--topic", "flights", "--bootstrap-servers", "127.0.0.1:1")
SLOW = "{'sqlalchemy', 'confluent_kafka', 'kafka', 'asyncio', 'crc32c'}"


def modules_after(*words: str) -> tuple[str, list[str]]:
    """The message of ``dualwrite`` with ``words``, and the slow modules that it imported."""
    code = (
        "import sys; from dualwrite.cli.main import main\n"
        f"try: main({list(words)!r})\n"
        "except SystemExit: pass\n"
        f"print(*sorted({SLOW} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stderr, done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nofile.csv", "--db", "sqlite:///x.db"), "cannot read nofile.csv: No such file or directory"),
        (("f.csv", "--db", "sqlite:///x.db", "--nope"), "unrecognized arguments: --nope"),
        (("f.csv", "--db", "sqlite:///x.db", "--encoding", "utf-9"), "--encoding 'utf-9': Python knows no such"),
        (("f.csv", "--db", "sqlite:///x.db", "-X", "nosuch=1"), "-X: nosuch: there is no such setting"),
    ],
)
def test_a_mistake_is_reported_without_a_database_or_a_kafka_client(words: tuple[str, ...], message: str) -> None:
    shown, imported = modules_after("load", *words, *TARGET)
    assert message in shown
    assert imported == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--key", "a,b"), "--key a,b: several columns have no agreed form"),
        (("--key", "id", "--wait", "-1"), "--wait -1: use 0 or more seconds"),
        (("--key", "id", "-X", "nosuch=1"), "-X: nosuch: there is no such setting"),
    ],
)
def test_a_mistake_in_a_comparison_is_reported_without_a_database_or_a_kafka_client(
    words: tuple[str, ...], message: str
) -> None:
    shown, imported = modules_after("compare", "--db", "sqlite:///x.db", *words, *TARGET)
    assert message in shown
    assert imported == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("consume", "t", "--max", "0"), "--max 0: use 1 or more"),
        (("consume", "t", "--from", "never"), "argument --from: 'never': use beginning, end, an offset, or a time"),
        (("topics", "create", "t", "--config", "x"), "--config 'x': use KEY=VALUE"),
        (("topics", "list", "-X", "nosuch=1"), "-X: nosuch: there is no such setting"),
        (("groups", "list", "-X", "nosuch=1"), "-X: nosuch: there is no such setting"),
        (("acls", "add", "--principal", "User:a", "--operation", "READ"), "name a resource: --topic, --group, "),
    ],
)
def test_a_mistake_in_a_daily_verb_is_reported_without_a_kafka_client(words: tuple[str, ...], message: str) -> None:
    shown, imported = modules_after(*words, "--bootstrap-servers", "127.0.0.1:1")
    assert message in shown
    assert imported == []


def test_a_wrong_url_scheme_is_reported_without_a_kafka_client(tmp_path: Path) -> None:
    file = write_input(tmp_path / "f.csv", "id,name\n" + csv_text(1))
    shown, imported = modules_after("load", str(file), "--db", "oracle://x", *TARGET)
    assert "database 'oracle' is not supported" in shown
    assert not {"kafka", "confluent_kafka", "crc32c"} & set(imported)


def test_a_dry_run_needs_no_database_and_no_kafka_client(tmp_path: Path) -> None:
    file = write_input(tmp_path / "f.csv", "id,name\n" + csv_text(1))
    shown, imported = modules_after("load", str(file), "--db", "oracle://x", *TARGET, "--dry-run")
    assert (shown, imported) == ("", [])
