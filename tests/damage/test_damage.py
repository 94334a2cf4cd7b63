"""One bit flipped or one file truncated, in every kind of file that the broker writes: never a wrong answer.

``python -m tests.damage`` writes the whole table, docs/reference/damage.md.
"""

import ast
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker.log import layout, recovery, segment
from dualwrite.ports import Files
from dualwrite.records.header import iterate_batches
from tests.damage.__main__ import main
from tests.damage.kinds import KINDS, LOCK, UnknownKindError, kind_of
from tests.damage.page import markdown
from tests.damage.table import KILLED, STOPPED, DamageTable, fill
from tests.damage.trials import Damage, DamagedDirectory, DamageOutcome, flips, truncations
from tests.damage.world import interrupted, killed, stopped
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, new_topic, produce
from tests.support.requests.raw_client import RawClient

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "damage.md"
BROKER = Path(layout.__file__).parents[1]
WRITERS = {
    "log/layout.py", "log/recovery_point.py", "log/segment.py",  # in the directories of logs
    "process/data_dir.py", "process/data_lock.py",  # beside those
    "broker.py", "embedded.py", "metrics/health.py",  # not data: the ready file, an embedded broker's settings, a probe
    "tls/context.py",  # a certificate in memory, for OpenSSL
}  # fmt: skip


def sample(contents: dict[Path, bytes], number: int, seed: int) -> DamageTable:
    """``number`` random damages of one directory."""
    rng, table, directory = random.Random(seed), DamageTable(), DamagedDirectory(contents)
    paths = [path for path in sorted(contents) if contents[path]]
    for _ in range(number):
        path = rng.choice(paths)
        ((_, damage), *_) = rng.choice((flips, truncations))({path: contents[path]}, rng, 1)
        table.add((STOPPED, kind_of(path), "bits"), path, damage, directory.try_out(path, damage))
    return table


def test_a_sample_of_damages_yields_no_wrong_answer() -> None:
    table = sample(stopped(), 30, seed=1)
    assert table.wrong == []
    assert table.trials == 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_larger_sample_of_damages_yields_no_wrong_answer(seed: int) -> None:
    for contents in (stopped(), killed(), *interrupted()):
        assert sample(contents, 25, seed).wrong == []


def test_every_kind_of_file_is_on_the_page_and_no_answer_is_wrong() -> None:
    page = PAGE.read_text()
    for kind in set(KINDS) - {LOCK}:
        assert f"| {kind} | one bit flipped |" in page, f"run: python -m tests.damage --markdown {PAGE}"
        assert f"| {kind} | truncated |" in page
    rows = re.findall(r"^\| .* \| (?:one bit flipped|truncated) \|(.*)\|$", page, re.MULTILINE)
    assert {row.split("|")[-1].strip() for row in rows} == {""}, "a wrong answer"


# --- every kind of file


def test_the_directories_have_every_kind_of_file() -> None:
    directories = (stopped(), killed(), *interrupted())
    seen = {kind_of(path) for contents in directories for path, content in contents.items() if content}
    assert seen == set(KINDS) - {LOCK, "`dualwrite-format`"}, "those two are beside the logs"


def test_a_broker_process_writes_no_file_of_another_kind(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        produce(client, new_topic(client), batch([b"v"]))
    names = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    kinds = {kind_of(name) for name in names if name.name != "broker.log"}
    assert {LOCK, "`dualwrite-format`", "`.checksums`", "`.snapshot`"} <= kinds


def test_a_file_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(UnknownKindError, match=r"t-0/notes\.txt is a file of a kind"):
        kind_of(Path("/data/t-0/notes.txt"))


def test_every_name_in_the_layout_of_a_log_is_a_kind() -> None:
    stem = "0" * 20
    constants = [value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)]
    for value in constants:
        name = f"{stem}{value}" if value.startswith(".") else value
        assert kind_of(Path("/data/t-0") / name) in KINDS
    assert len(constants) > 9


def test_no_other_module_of_the_broker_writes_files() -> None:
    writers = {
        str(path.relative_to(BROKER)) for path in BROKER.rglob("*.py") if path.name != "disk.py" and writes(path)
    }
    assert writers == WRITERS, "give the file of the new one a kind in tests/damage/kinds.py"


def writes(path: Path) -> bool:
    """True if the module at ``path`` opens a file to write it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.endswith(("files.open", "write_text", "write_bytes", "os.fdopen")):
                return True
            if name == "open" and len(node.args) > 1 and "w" in ast.unparse(node.args[1]):
                return True
    return False


# --- the table and its oracle


def test_the_command_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def few(table: DamageTable, *_: Any) -> DamageTable:
        return sample(stopped(), 5, seed=3)

    monkeypatch.setattr("tests.damage.__main__.fill", few)
    monkeypatch.setattr("sys.argv", ["damage", "--markdown", str(tmp_path / "page.md"), "--most", "7"])
    assert main() == 0
    page = (tmp_path / "page.md").read_text()
    assert page in capsys.readouterr().out
    assert "python -m tests.damage --most 7 --seed 0 --markdown docs/reference/damage.md" in page
    assert "5 damages were tried" in page


def test_the_page_has_a_row_for_each_kind_and_damage() -> None:
    table = DamageTable()
    path = next(path for path in stopped() if path.name == layout.RECOVERY_POINT)
    damage = Damage(length=0)
    table.add((KILLED, kind_of(path), "lengths"), path, damage, DamagedDirectory(stopped()).try_out(path, damage))
    rows = [line for line in markdown(table, "x").splitlines() if "`recovery-point`" in line]
    assert rows == ["| `recovery-point` | truncated |  |  |  | 1 |  |  |  |"]
    assert "1 damages were tried, a sample for each kind of file" in markdown(table, "x")
    assert "1 damages were tried: every bit, and every length" in markdown(table, "x", is_sample=False)


def test_every_bit_and_every_length_can_be_tried() -> None:
    rng, path = random.Random(1), Path("/data/t-0/recovery-point")
    flipped, cut = flips({path: b"12\n"}, rng, None), truncations({path: b"12\n"}, rng, None)
    assert [damage.bit for _, damage in flipped] == list(range(24))
    assert [damage.length for _, damage in cut] == [0, 1, 2]
    assert {damage.of(b"12\n") for _, damage in flipped} >= {b"02\n", b"13\n"}
    assert {damage.of(b"12\n") for _, damage in cut} == {b"", b"1", b"12"}


@pytest.mark.slow
def test_several_processes_make_the_same_table() -> None:
    alone, together = (fill(DamageTable(), 3, 2, processes=processes) for processes in (1, 2))
    assert alone.counts == together.counts
    assert alone.trials > 100


def test_a_sample_of_a_log_has_bits_of_the_headers_of_batches() -> None:
    logs = {path: content for path, content in stopped().items() if path.suffix == ".log"}
    assert 10 < len(flips(logs, random.Random(1), 10)) <= 20
    assert 10 < len(truncations(logs, random.Random(1), 10)) <= 20


def test_a_log_that_ends_with_a_batch_behind_its_recovery_point_is_counted_as_shorter() -> None:
    path = max(path for path in killed() if path.parent.name == "t-0" and path.suffix == ".log")
    content = killed()[path]
    *_, (last, _) = iterate_batches(content)
    directory = DamagedDirectory(killed())
    assert directory.try_out(path, Damage(length=len(content) - last.size)).outcome is DamageOutcome.SHORTER
    assert directory.try_out(path, Damage(length=len(content) - 1)).outcome is DamageOutcome.CUT
    assert DamagedDirectory(stopped()).try_out(path, Damage(length=1)).outcome is DamageOutcome.START_REFUSED


def test_readers_refuse_a_batch_behind_the_recovery_point_with_another_leader_epoch() -> None:
    """Its checksum does not cover the leader epoch, which a consumer gets with each record. But the batch is whole, so
    it is not cut."""
    path = max(path for path in killed() if path.parent.name == "t-0" and path.suffix == ".log")
    content, directory = killed()[path], DamagedDirectory(killed())
    *_, (last, _) = iterate_batches(content)
    epoch = (len(content) - last.size + 12) * 8
    outcomes = {directory.try_out(path, Damage(bit=bit)).outcome for bit in range(epoch, epoch + 32)}
    assert outcomes == {DamageOutcome.READER_REFUSED}


def trusting(index: Any, *_: Any) -> bytes:
    """A check of an index that accepts everything."""
    files, path, known = index, _[0], _[1]
    file = files.reader(path)
    return bytes(file.read(0, min(known.size, file.size())))


def any_number(files: Files, path: Path) -> int:
    """A reader of notes that does not look at the checksum."""
    if path.name not in files.list(path.parent):
        return 0
    file = files.reader(path)
    found = re.match(rb"\d+", file.read(0, file.size()))
    return int(found[0]) if found else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "broken", "suffix"),
    [
        (recovery, "checked_index", trusting, ".txnindex"),
        (recovery, "read_mark", any_number, layout.LOG_START_OFFSET),
        (segment, "check_batches", lambda *_: None, ".log"),
    ],
    ids=["the-index-of-aborted-transactions", "notes", "batches"],
)
def test_a_check_that_is_left_out_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Callable[..., Any], suffix: str
) -> None:
    contents = stopped()
    directory = DamagedDirectory(contents)
    monkeypatch.setattr(place, name, broken)
    rng = random.Random(2)
    suffixed = {
        path: content
        for path, content in contents.items()
        if path.name.endswith(suffix) and path.parent.name.startswith("t-")
    }
    outcomes = [directory.try_out(path, damage).outcome for path, damage in flips(suffixed, rng, 60)]
    assert DamageOutcome.WRONG in outcomes


def test_a_full_table_counts_each_damage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr("tests.damage.table.stopped", dict)
    monkeypatch.setattr("tests.damage.table.killed", dict)
    monkeypatch.setattr("tests.damage.table.interrupted", lambda: ({}, {}, {}))
    table = fill(DamageTable(), 0, 1, names.append)
    assert table.trials == 16 + 2, "the bits and the lengths of the file with the version of the format"
    assert table.wrong == []
