"""The code in the documentation runs as it stands there.

Python behind ``<!-- run -->`` is run block by block, with what its page takes for granted; a test function in it is
called with pytest's fixtures. In the tutorial a block with a title is a file, and a console's commands are carried out
one after the other: each must print what is written below it.

docs/site_examples.py also runs code of the pages, on SQLite, as the site is built.
"""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite import DualWrite
from dualwrite.testing.kafka import KafkaBroker
from tests.support.examples.programs import HOME, environment

BLOCK = re.compile(r"<!-- run -->\n(?:<!-- output -->\n)?```python\n(.*?)```", re.DOTALL)
PAGES = {path: BLOCK.findall(path.read_text(encoding="utf-8")) for path in sorted((HOME / "docs").rglob("*.md"))}
ADDRESS = "127.0.0.1:9092"


class PagesBase(DeclarativeBase):
    pass


class PageOrder(PagesBase):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


def place_order(dw: DualWrite, topic: str, item: str) -> None:
    with dw.transaction() as tx:
        tx.execute(insert(PageOrder).values(item=item))
        tx.produce(topic, key=item, value=item.encode())


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, dualwrite_engine: Engine, broker: KafkaBroker) -> None:
    """The tutorial's ``shop.py``, which pages import."""
    module = ModuleType("shop")
    vars(module).update(engine=dualwrite_engine, kafka=broker.client_config, orders=PageOrder.__table__)
    monkeypatch.setitem(sys.modules, "shop", module)


@pytest.fixture
def taken_for_granted(
    dualwrite_factory: Callable[..., DualWrite], dualwrite_engine: Engine, broker: KafkaBroker
) -> Iterator[dict[str, Any]]:
    """The names that the pages use: those of the tutorial, and of libraries."""
    PagesBase.metadata.create_all(dualwrite_engine)
    names = {
        "DualWrite": DualWrite,
        "IntegrityError": IntegrityError,
        "Order": PageOrder,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "dw": dualwrite_factory(kafka=broker.client_config),
        "engine": dualwrite_engine,
        "insert": insert,
        "kafka": broker.client_config,
        "orders": PageOrder.__table__,
        "place_order": place_order,
        "select": select,
    }
    yield names
    names["dw"].close()  # a page may have made one of its own


@pytest.mark.slow_cases
@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_and_leaves_both_sides_equal(
    page: Path,
    taken_for_granted: dict[str, Any],
    dualwrite_engine: Engine,
    broker: KafkaBroker,
    request: pytest.FixtureRequest,
) -> None:
    names = taken_for_granted
    for code in PAGES[page]:
        exec(compile(code, str(page), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    for test in tests:
        run_test(test, names, request)
    if tests:
        return  # which have looked at both sides themselves
    with dualwrite_engine.connect() as connection:
        rows = sorted(connection.scalars(select(PageOrder.item)))
    keys = [(record.key or b"").decode() for record in broker.read("orders", minimum=1)]
    assert rows == sorted(keys)


def run_test(test: Callable[..., None], names: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """As pytest would; the tables are there already."""
    names["orders"] = request.getfixturevalue("orders_to_be_made")
    wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
    test(**{name: request.getfixturevalue(name) for name in wanted})


@pytest.fixture
def orders_to_be_made(dualwrite_engine: Engine) -> Any:
    PagesBase.metadata.drop_all(dualwrite_engine)
    return PageOrder.__table__


def test_pages_with_runnable_code_are_found() -> None:
    found = {page.stem: len(blocks) for page, blocks in PAGES.items() if blocks}
    assert found.keys() >= {"databases", "testing", "workers"}
    assert sum(found.values()) >= 6


class Tutorial:
    """What a reader of the tutorial types, and sees."""

    def __init__(self, directory: Path, bootstrap_servers: str) -> None:
        self._directory = directory
        self._address = bootstrap_servers
        self.commands = 0

    def follow(self, page: str) -> None:
        for kind, title, text in re.findall(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```', page, re.DOTALL | re.MULTILINE):
            if title:
                (self._directory / title).write_text(text.replace(ADDRESS, self._address), encoding="utf-8")
            elif kind == "console":
                for command, expected in self._typed(text):
                    assert self._run(command) == expected, command
                    self.commands += 1

    def _typed(self, console: str) -> Iterator[tuple[str, str]]:
        """Each command with what is printed below it, but those that set up what is there already."""
        for part in console.removeprefix("$ ").split("\n$ "):
            command, _, printed = part.partition("\n")
            if not command.startswith(("python3 -m venv ", "pip ", "dualwrite broker ", "python examples/")):
                yield command, printed.rstrip("\n")

    def _run(self, command: str) -> str:
        words = shlex.split(command.replace(ADDRESS, self._address))
        program = {"python": [], "dualwrite": ["-m", "dualwrite"]}[words[0]]
        done = subprocess.run(
            [sys.executable, *program, *words[1:]],
            cwd=self._directory,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # as at a terminal
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode == -signal.SIGKILL:
            return "Killed"
        assert done.returncode == 0, (command, done.stdout)
        return "\n".join(line.rstrip() for line in done.stdout.splitlines())


@pytest.mark.slow
def test_the_tutorial_goes_as_it_says(tmp_path: Path, broker: KafkaBroker) -> None:
    tutorial = Tutorial(tmp_path, broker.bootstrap_servers)
    tutorial.follow((HOME / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    assert tutorial.commands >= 13
