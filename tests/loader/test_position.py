"""A load's position: its identity, and the guard against two processes that load the same file."""

from pathlib import Path

import pytest
from sqlalchemy import Engine

from dualwrite.errors import InputError
from dualwrite.loader.identity import LoadKey
from dualwrite.loader.position import LoadPosition, advance, read_position
from tests.support.loader.input_files import make_database

KEY = LoadKey("/data/f.csv", "flights", "topic")
FIRST = LoadPosition(3, "a" * 64)
SECOND = LoadPosition(5, "b" * 64)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return make_database(tmp_path)


def stored(engine: Engine, key: LoadKey = KEY) -> LoadPosition:
    with engine.connect() as connection:
        return read_position(connection, key)


def move(engine: Engine, before: LoadPosition, after: LoadPosition, key: LoadKey = KEY) -> None:
    with engine.begin() as connection:
        advance(connection, key, before, after)


def test_a_load_that_never_began_is_at_its_beginning(engine: Engine) -> None:
    assert stored(engine) == LoadPosition()


def test_a_position_moves_on(engine: Engine) -> None:
    move(engine, LoadPosition(), FIRST)
    assert stored(engine) == FIRST
    move(engine, FIRST, SECOND)
    assert stored(engine) == SECOND


def test_loads_have_positions_of_their_own(engine: Engine) -> None:
    other = LoadKey(KEY.source, KEY.table, "another topic")
    move(engine, LoadPosition(), FIRST)
    move(engine, LoadPosition(), SECOND, other)
    assert (stored(engine), stored(engine, other)) == (FIRST, SECOND)


@pytest.mark.parametrize("before", [LoadPosition(), LoadPosition(2, "c" * 64), SECOND])
def test_a_position_that_another_process_moved_is_unchanged(engine: Engine, before: LoadPosition) -> None:
    move(engine, LoadPosition(), FIRST)
    with pytest.raises(InputError, match=r"/data/f\.csv is being loaded into table flights by another process"):
        move(engine, before, SECOND)
    assert stored(engine) == FIRST


def test_a_load_is_known_by_the_whole_path_the_table_and_the_topic(tmp_path: Path) -> None:
    near, far = tmp_path / "f.csv", tmp_path / "far" / "f.csv"
    keys = [
        LoadKey.of(near, "t", "x"),
        LoadKey.of(far, "t", "x"),
        LoadKey.of(near, "u", "x"),
        LoadKey.of(near, "t", "y"),
    ]
    assert len({key.load_id for key in keys}) == 4
    assert all(len(key.load_id) == 64 for key in keys)


def test_a_path_is_the_same_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.csv"
    path.touch()
    (tmp_path / "link.csv").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    spellings = [path, Path("f.csv"), tmp_path / "x" / ".." / "f.csv", tmp_path / "link.csv"]
    assert len({LoadKey.of(spelling, "t", "x").load_id for spelling in spellings}) == 1


def test_a_very_long_path_fits_its_column(engine: Engine) -> None:
    key = LoadKey("/" + "d" * 3000 + "/f.csv", "t", "x")
    move(engine, LoadPosition(), FIRST, key)
    with engine.connect() as connection:
        source = connection.exec_driver_sql("SELECT source FROM dualwrite_load_position").scalar()
    assert source == key.source[-1024:]


def test_another_table_and_another_topic_are_another_load() -> None:
    loads = [("f.csv", "ab", "c"), ("f.csv", "a", "bc"), ("f.csv", "abc", ""), ("f.cs", "va", "bc")]
    assert len({LoadKey.named(*load).load_id for load in loads}) == len(loads)


def test_a_name_is_no_path() -> None:
    assert LoadKey.named("/f.csv", "a", "b").load_id != LoadKey.of(Path("/f.csv"), "a", "b").load_id
