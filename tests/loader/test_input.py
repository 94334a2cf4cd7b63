"""Input files: every file format gives the same rows, and every error names the line."""

import csv
import gzip
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualwrite.errors import InputError
from dualwrite.loader.input import ExactFloat, InputFile, InputRow
from tests.support.loader.input_files import write_input

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r"), max_size=12)


def read(path: Path) -> list[InputRow]:
    with InputFile(path) as source:
        return list(source.rows())


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        read(path)
    return str(refused.value)


@pytest.mark.parametrize("name", ["f.csv", "f.csv.gz", "f.csv.zip", "F.CSV"])
def test_csv_is_read_in_every_wrapping(tmp_path: Path, name: str) -> None:
    rows = read(write_input(tmp_path / name, "id,name\n1,a\n2,b\n"))
    assert rows == [InputRow(2, {"id": "1", "name": "a"}), InputRow(3, {"id": "2", "name": "b"})]


@pytest.mark.parametrize("name", ["f.jsonl", "f.ndjson.gz", "f.json.zip"])
def test_json_lines_are_read_in_every_wrapping(tmp_path: Path, name: str) -> None:
    rows = read(write_input(tmp_path / name, '{"id": 1, "name": null}\n\n{"id": 2}\n'))
    assert rows == [InputRow(1, {"id": 1, "name": None}), InputRow(3, {"id": 2})]


def test_a_json_number_keeps_its_spelling(tmp_path: Path) -> None:
    (row,) = read(write_input(tmp_path / "f.jsonl", '{"price": 0.10000000000000000001}'))
    price = row.values["price"]
    assert isinstance(price, ExactFloat)
    assert (price, price.text) == (0.1, "0.10000000000000000001")


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_data(tmp_path: Path) -> None:
    rows = read(write_input(tmp_path / "f.csv", b"\xef\xbb\xbfid,name\r\n1,a\r\n"))
    assert rows == [InputRow(2, {"id": "1", "name": "a"})]


def test_a_row_is_named_by_the_line_on_which_it_begins(tmp_path: Path) -> None:
    rows = read(write_input(tmp_path / "f.csv", 'id,name\n1,"a\nb\nc"\n\n2,d\n'))
    assert [(row.line, row.values["name"]) for row in rows] == [(2, "a\nb\nc"), (6, "d")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=8))
def test_rows_written_by_a_csv_writer_are_read_back(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    read_back = read(write_input(tmp_path / "f.csv", text.getvalue()))
    assert [tuple(row.values.values()) for row in read_back] == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "f.csv is empty; its first line must name the columns"),
        ("id,,x\n", "f.csv, line 1: column 2 has no name"),
        ("id,id\n", "f.csv, line 1: column 'id' is named twice"),
        ("id,name\n1,a\n2\n", "f.csv, line 3: 1 fields where the header names 2 columns"),
        ("id,name\n1,a,b\n", "f.csv, line 2: 3 fields where the header names 2 columns"),
        ('id,name\n1,a\n2,"b\n3,c\n', "f.csv, line 3: unexpected end of data"),
        ('id,name\n1,"a"b\n', "f.csv, line 2: ',' expected after '\"'"),
        (b"id,name\n1,\xff\n", "f.csv, line 2: is not UTF-8 (byte 3); is it in another --encoding?"),
        (b"id,name\n1,a\0\n", "f.csv, line 2: contains a NUL byte; this is not a text file"),
    ],
)
def test_malformed_csv_is_refused_with_its_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert refusal(write_input(tmp_path / "f.csv", content)) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON: "),
        ("[1]", "expected a JSON object with a value for each column"),
        ("{}", "expected a JSON object with a value for each column"),
        ('{"id": NaN}', "no JSON: NaN is not a JSON number"),
        ("[" * 200_000, "no JSON: "),
        ('{"id": 1} {"id": 2}', "no JSON: Extra data"),
        ('{"id": 1, "name": "a", "name": "b"}', "column 'name' is named twice"),
        ('{"id": 1, "a": 2, "n\\u0061me": 3, "name": 3}', "column 'name' is named twice"),
    ],
)
def test_malformed_json_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = write_input(tmp_path / "f.jsonl", f'{{"id": 1}}\n{line}\n')
    assert refusal(path).startswith(f"f.jsonl, line 2: {message}")


def test_a_value_may_have_a_name_twice(tmp_path: Path) -> None:
    """It is the column's: PostgreSQL's JSON has the last one, too."""
    path = write_input(tmp_path / "f.jsonl", '{"id": 1, "document": [{"a": 1, "a": 2}]}\n')
    assert read(path) == [InputRow(1, {"id": 1, "document": [{"a": 2}]})]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "f.csv") == f"cannot read {tmp_path / 'f.csv'}: No such file or directory"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"cannot read {tmp_path}: Is a directory"


@pytest.mark.parametrize("name", ["f.parquet", "f.gz", "f.xlsx.zip", "f"])
def test_an_unknown_kind_is_refused(tmp_path: Path, name: str) -> None:
    message = refusal(write_input(tmp_path / name, "id\n1\n"))
    assert message.startswith(f"{name}: ")
    assert "is of an unknown kind; use .csv" in message


@pytest.mark.parametrize("members", [[], ["a.csv", "b.csv"]])
def test_an_archive_with_any_other_number_of_files_than_one_is_refused(tmp_path: Path, members: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        for member in members:
            archive.writestr(member, "id\n1\n")
    assert refusal(tmp_path / "f.zip") == f"f.zip holds {len(members)} files; it must hold one"


def test_an_archive_may_have_directories_around_its_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        archive.writestr("data/", "")
        archive.writestr("data/x.csv", "id\n1\n")
    assert read(tmp_path / "f.zip") == [InputRow(2, {"id": "1"})]


@pytest.mark.parametrize("name", ["f.csv.gz", "f.csv.zip"])
def test_files_that_are_not_archives_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("id\n1\n")
    assert f"{name} cannot be read" in refusal(tmp_path / name)


def test_a_truncated_gzip_file_is_refused_where_it_ends(tmp_path: Path) -> None:
    whole = gzip.compress(b"id\n" + b"".join(b"%d\n" % (n * n) for n in range(5000)))
    (tmp_path / "f.csv.gz").write_bytes(whole[: len(whole) // 2])
    assert "f.csv.gz cannot be read beyond line " in refusal(tmp_path / "f.csv.gz")


def digest_after(path: Path, rows: int) -> str:
    with InputFile(path) as source:
        reading = source.rows()
        for _ in range(rows):
            next(reading)
        return source.digest()


def test_the_digest_is_of_the_rows_handed_out(tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.csv", "id\n1\n2\n3\n")
    assert len({digest_after(path, rows) for rows in range(4)}) == 4
    longer = write_input(tmp_path / "longer.csv", "id\n1\n2\n3\n4\n")
    assert digest_after(longer, 3) == digest_after(path, 3)


@pytest.mark.parametrize("text", ["id\n1\n2", "id\r\n1\r\n2\r\n", "id\n\n1\n2\n\n", "id\n1\n2\n3\n"])
def test_line_ends_and_blank_lines_leave_the_digest_alone(tmp_path: Path, text: str) -> None:
    plain = write_input(tmp_path / "plain.csv", "id\n1\n2\n")
    assert digest_after(write_input(tmp_path / "f.csv", text), 2) == digest_after(plain, 2)


@pytest.mark.parametrize("text", ["id\n1\n22\n", "ID\n1\n2\n", "id\n2\n1\n", "id\n12\n\n3\n", "id\n1 \n2\n"])
def test_other_rows_have_another_digest(tmp_path: Path, text: str) -> None:
    plain = write_input(tmp_path / "plain.csv", "id\n1\n2\n")
    assert digest_after(write_input(tmp_path / "f.csv", text), 2) != digest_after(plain, 2)


@pytest.mark.parametrize("name", ["f.csv", "f.csv.gz", "f.csv.zip"])
def test_the_fraction_grows_to_one(tmp_path: Path, name: str) -> None:
    path = write_input(tmp_path / name, "id\n" + "".join(f"{n * n * n}\n" for n in range(60_000)))
    with InputFile(path) as source:
        seen = [source.fraction() for _ in source.rows()]
        seen.append(source.fraction())
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    assert seen[-1] == 1
