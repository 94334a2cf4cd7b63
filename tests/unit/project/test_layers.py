"""The house stands as docs/design.md draws it; and every rule that says so reports a house that does not."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

import dualwrite
from tests.support.layers import (
    MAY_IMPORT,
    NEVER,
    ORDER,
    PURE,
    RULES,
    THROUGH_LOOP,
    THROUGH_PORTS,
    Module,
    Rule,
    brokers_tier_t_does_io_through_loop_and_ports,
    class_names_are_unique,
    databases_differ_behind_one_interface,
    every_module_has_a_docstring,
    exceptions_are_compared_with_none,
    files_are_short,
    folders_are_small,
    functions_are_short,
    imports_have_no_loops,
    nothing_imports_the_face,
    pure_modules_do_no_io,
    pyspark_is_imported_in_spark_only,
    read_tree,
    rooms_know_only_what_they_stand_on,
    rooms_of_a_floor_import_those_before_them,
    tier_t_does_io_through_ports_only,
)

HOUSE = Path(dualwrite.__file__).parent


def build(root: Path, files: Mapping[str, str]) -> Path:
    """A package of ``files``, each with a docstring unless its text is ``-``, and an ``__init__`` in each directory."""
    for name, text in {"__init__.py": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if text == "-" else f'"""A room."""\n{text}\n')
        for parent in path.parents:
            if parent == root.parent:
                break
            if not (parent / "__init__.py").exists():
                (parent / "__init__.py").write_text('"""A floor."""\n')
    return root


def broken(root: Path, files: Mapping[str, str]) -> dict[str, list[str]]:
    """What each rule reports about a package of ``files``; rules with nothing to report are left out."""
    modules = read_tree(build(root, files))
    found = {rule.__name__: list(rule(modules)) for rule in RULES}
    return {name: sentences for name, sentences in found.items() if sentences}


@pytest.fixture(scope="module")
def house() -> list[Module]:
    return read_tree(HOUSE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rules(house: list[Module], rule: Rule) -> None:
    assert list(rule(house)) == []


def test_the_whole_house_is_read(house: list[Module]) -> None:
    names = {module.name for module in house}
    assert {"", "ids", "records.header", "wire.codec", "coordinator.ports", "cli.main"} <= names
    assert len(names) == len(list(HOUSE.rglob("*.py")))


def test_a_sound_house_breaks_no_rule(tmp_path: Path) -> None:
    files = {
        "ids.py": "import hashlib\nfrom uuid import UUID",
        "ports.py": "from pathlib import Path",
        "wire/codec.py": "from dualwrite.ids import X\nfrom kafka.protocol import Y",
        "broker/core/rules.py": "from dualwrite.broker.facts import transactions",
        "broker/facts/transactions.py": "from dualwrite.ids import X",
        "broker/log/segment.py": "from threading import Lock\nfrom dualwrite.broker.facts import transactions",
        "broker/runtime/loop.py": "import asyncio\nfrom dualwrite.broker.core import rules\n"
        "from dualwrite.broker.log import segment",
        "coordinator/kafka/native.py": "from dualwrite.client.admin.control_plane import X",
        "coordinator/steps/driver.py": "",
        "client/admin/control_plane.py": "import socket\nfrom dualwrite.wire.codec import X",
        "loader/load.py": "from dualwrite.coordinator.steps.driver import X",
        "cli/load.py": "from dualwrite.loader.load import X",
        "coordinator/slots/pool.py": "import logging\nfrom asyncio import CancelledError\n"
        "from sqlalchemy.exc import SQLAlchemyError\n"
        "from dualwrite.coordinator.rules import machine\nif TYPE_CHECKING:\n    from sqlalchemy import Connection\n"
        "    from dualwrite.coordinator.sql.tables import table",
        "coordinator/rules/machine.py": "",
        "coordinator/sql/tables.py": "import sqlalchemy",
        "coordinator/sql/dialects/mysql/database.py": "from sqlalchemy.dialects import mysql\n"
        "x = dialect.name == 'mysql'",
        "spark/partitions/writers.py": "import pyspark.sql\nfrom dualwrite.coordinator.steps import driver",
    }
    assert broken(tmp_path / "dualwrite", files) == {}


@pytest.mark.parametrize(
    ("rule", "files", "sentence"),
    [
        (pure_modules_do_no_io, {"ids.py": "import socket"}, "ids is pure and imports socket"),
        (pure_modules_do_no_io, {"ids.py": "def f():\n    import time"}, "ids is pure and imports time"),
        (pure_modules_do_no_io, {"wire/codec.py": "from os.path import join"}, "wire.codec is pure and imports os"),
        (
            pure_modules_do_no_io,
            {"coordinator/rules/machine.py": "import logging"},
            "coordinator.rules.machine is pure and imports logging",
        ),
        (
            pure_modules_do_no_io,
            {"broker/core/a.py": "async def f(): ..."},
            "broker.core.a is pure and asynchronous at line 2",
        ),
        (pure_modules_do_no_io, {"ids.py": "import uuid\nuuid.uuid4()"}, "ids is pure and calls uuid4 at line 3"),
        (pure_modules_do_no_io, {"ids.py": "from pathlib import Path"}, "ids is pure and imports pathlib"),
        (pure_modules_do_no_io, {"ids.py": "x = datetime.now(None)"}, "ids is pure and calls now at line 2"),
        (pure_modules_do_no_io, {"records/a.py": "open('x')"}, "records.a is pure and calls open at line 2"),
        (
            pure_modules_do_no_io,
            {"client/engine/a.py": "from dualwrite.client.threads import X", "client/threads.py": ""},
            "client.engine.a is pure and imports client.threads, which is not",
        ),
        (
            tier_t_does_io_through_ports_only,
            {"coordinator/slots/a.py": "from dualwrite.coordinator.sql.b import X", "coordinator/sql/b.py": ""},
            "coordinator.slots.a is of tier T and imports coordinator.sql.b, which is of tier S",
        ),
        (
            tier_t_does_io_through_ports_only,
            {"coordinator/steps/a.py": "from sqlalchemy import Connection"},
            "coordinator.steps.a is of tier T and imports sqlalchemy.Connection",
        ),
        (
            tier_t_does_io_through_ports_only,
            {"coordinator/recovery/a.py": "def f():\n    from time import sleep"},
            "coordinator.recovery.a is of tier T and imports time.sleep",
        ),
        (
            tier_t_does_io_through_ports_only,
            {"coordinator/steps/a.py": "from asyncio import sleep"},
            "coordinator.steps.a is of tier T and imports asyncio.sleep",
        ),
        (
            rooms_know_only_what_they_stand_on,
            {"broker/net/a.py": "from dualwrite.coordinator.unit.b import X", "coordinator/unit/b.py": ""},
            "broker.net.a imports coordinator.unit.b",
        ),
        (
            rooms_know_only_what_they_stand_on,
            {"coordinator/unit/b.py": "import dualwrite.broker.net.a", "broker/net/a.py": ""},
            "coordinator.unit.b imports broker.net.a",
        ),
        (
            rooms_know_only_what_they_stand_on,
            {"broker/log/a.py": "from dualwrite.broker.core import b", "broker/core/b.py": ""},
            "broker.log.a imports broker.core.b",
        ),
        (
            rooms_know_only_what_they_stand_on,
            {"broker/api/a.py": "from ..log import b", "broker/log/b.py": ""},
            "broker.api.a imports broker.log.b",
        ),
        (
            rooms_know_only_what_they_stand_on,
            {"client/net/a.py": "from dualwrite.coordinator.unit import b", "coordinator/unit/b.py": ""},
            "client.net.a imports coordinator.unit.b",
        ),
        (
            rooms_know_only_what_they_stand_on,
            {"loader/a.py": "from dualwrite.cli.main import main", "cli/main.py": ""},
            "loader.a imports cli.main",
        ),
        (rooms_know_only_what_they_stand_on, {"cellar.py": ""}, "cellar is in a room that the plan of the house lacks"),
        (rooms_of_a_floor_import_those_before_them, {"client/a.py": ""}, "client.a is in no room of client"),
        (
            folders_are_small,
            {f"cli/verb{number}.py": "" for number in range(21)},
            "cli has 21 modules side by side; the limit is 20",
        ),
        (
            class_names_are_unique,
            {"cli/a.py": "class A: ...", "loader/b.py": "class A: ..."},
            "the class name A stands in cli.a and loader.b",
        ),
        (nothing_imports_the_face, {"cli/a.py": "import dualwrite"}, "cli.a imports dualwrite itself"),
        (nothing_imports_the_face, {"cli/a.py": "from dualwrite import DualWrite"}, "cli.a imports dualwrite itself"),
        (nothing_imports_the_face, {"cli/a.py": "from .. import DualWrite"}, "cli.a imports dualwrite itself"),
        (pyspark_is_imported_in_spark_only, {"cli/a.py": "from pyspark.sql import X"}, "cli.a imports pyspark"),
        (
            databases_differ_behind_one_interface,
            {"cli/a.py": "from sqlalchemy.dialects import mysql"},
            "cli.a imports sqlalchemy.dialects.mysql",
        ),
        *(
            (
                databases_differ_behind_one_interface,
                {"cli/a.py": text},
                "cli.a asks which database it has at line 2",
            )
            for text in (
                "f(engine.dialect.name)",
                "looks.get(dialect.name)",
                "f(context.dialect_name)",
                "f(dialect_name)",
                "f(url.get_backend_name())",
                "kind == 'sqlite'",
                "kind in ('mysql', 'mariadb')",
                "x = {'postgresql': f}",
                "dialect.driver == 'psycopg'",
                "url.get_driver_name() == 'psycopg'",
            )
        ),
        (
            imports_have_no_loops,
            {"cli/a.py": "from dualwrite.cli import b", "cli/b.py": "def f():\n    from dualwrite.cli.a import X"},
            "import loop: cli.a -> cli.b -> cli.a",
        ),
        (
            exceptions_are_compared_with_none,
            {"cli/a.py": "x = error or y"},
            "cli.a asks whether an exception is true at line 2",
        ),
        (
            exceptions_are_compared_with_none,
            {"cli/a.py": "return_ = self._objection or other"},
            "cli.a asks whether an exception is true at line 2",
        ),
        (every_module_has_a_docstring, {"ids.py": "-"}, "ids has no docstring"),
        (files_are_short, {"ids.py": "\n" * 450}, "ids has 452 lines; the limit is 450"),
        (functions_are_short, {"ids.py": "def f():\n" + "    x = 1\n" * 60}, "ids.f has 61 lines; the limit is 60"),
    ],
)
def test_a_house_that_breaks_a_rule_is_reported(
    tmp_path: Path, rule: Rule, files: Mapping[str, str], sentence: str
) -> None:
    assert broken(tmp_path / "dualwrite", files) == {rule.__name__: [sentence]}


@pytest.mark.parametrize("room", THROUGH_LOOP)
@pytest.mark.parametrize(
    "line", ["import os", "import random", "import socket", "import time", "from threading import Thread"]
)
def test_each_room_of_the_brokers_tier_t_is_held_to_it(tmp_path: Path, room: str, line: str) -> None:
    found = broken(tmp_path / "dualwrite", {f"{room.replace('.', '/')}/a.py": line})
    imported = line.replace("from ", "").replace(" import ", ".").replace("import ", "")
    rule = brokers_tier_t_does_io_through_loop_and_ports.__name__
    assert found[rule] == [f"{room}.a is of tier T and imports {imported}"]


@pytest.mark.parametrize("call", ["open('x')", "path.read_bytes()", "datetime.now()"])
def test_the_brokers_tier_t_calls_nothing_that_does_io(tmp_path: Path, call: str) -> None:
    found = broken(tmp_path / "dualwrite", {"broker/log/a.py": call})
    name = call.partition("(")[0].rpartition(".")[2]
    rule = brokers_tier_t_does_io_through_loop_and_ports.__name__
    assert found[rule] == [f"broker.log.a is of tier T and calls {name} at line 2"]


def test_the_brokers_tier_t_may_use_the_files_port_and_its_loop(tmp_path: Path) -> None:
    text = "import asyncio\nfrom pathlib import Path\nfiles.open(Path('x'))"
    assert broken(tmp_path / "dualwrite", {"broker/log/a.py": text}) == {}


@pytest.mark.parametrize("pair", NEVER, ids=" to ".join)
def test_no_arrow_inside_the_broker_points_the_wrong_way(tmp_path: Path, pair: tuple[str, str]) -> None:
    above, below = (room.replace(".", "/") for room in pair)
    files = {f"{above}/a.py": f"from dualwrite.{pair[1]} import b", f"{below}/b.py": ""}
    assert (
        f"{pair[0]}.a imports {pair[1]}.b"
        in broken(tmp_path / "dualwrite", files)[rooms_know_only_what_they_stand_on.__name__]
    )


@pytest.mark.parametrize(
    ("floor", "room", "later"),
    [(floor, room, later) for floor, rooms in ORDER.items() for room, later in pairwise(rooms)],
)
def test_no_arrow_between_the_rooms_of_a_floor_points_the_wrong_way(
    tmp_path: Path, floor: str, room: str, later: str
) -> None:
    files = {f"{floor}/{room}/a.py": f"from dualwrite.{floor}.{later} import b", f"{floor}/{later}/b.py": ""}
    found = broken(tmp_path / "dualwrite", files)[rooms_of_a_floor_import_those_before_them.__name__]
    assert found == [f"{floor}.{room}.a imports {floor}.{later}.b, which stands on it"]


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"__main__"}))
def test_only_testing_stands_on_testing(tmp_path: Path, room: str) -> None:
    files = {f"{room}/a.py": "from dualwrite.testing import b", "testing/b.py": ""}
    reported = broken(tmp_path / "dualwrite", files).get(rooms_know_only_what_they_stand_on.__name__, [])
    assert (reported == []) == (room == "testing")


@pytest.mark.parametrize("room", PURE)
def test_each_pure_room_is_held_to_it(tmp_path: Path, room: str) -> None:
    found = broken(tmp_path / "dualwrite", {f"{room.replace('.', '/')}.py": "import random"})
    assert found[pure_modules_do_no_io.__name__] == [f"{room} is pure and imports random"]


@pytest.mark.parametrize("room", THROUGH_PORTS)
@pytest.mark.parametrize(
    "module", ["os", "queue", "random", "secrets", "select", "socket", "subprocess", "threading", "time"]
)
def test_each_room_of_tier_t_is_held_to_it(tmp_path: Path, room: str, module: str) -> None:
    found = broken(tmp_path / "dualwrite", {f"{room.replace('.', '/')}/a.py": f"import {module}"})
    assert found[tier_t_does_io_through_ports_only.__name__] == [f"{room}.a is of tier T and imports {module}"]
