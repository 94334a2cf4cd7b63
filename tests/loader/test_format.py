"""The format of an input: kinds, delimiters, encodings, and hints for the mistakes that people make with them."""

import codecs
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dualwrite.errors import ConfigurationError, InputError
from dualwrite.loader.format import InputFormat, delimiter_hint, parsed_delimiter, parsed_encoding
from dualwrite.loader.input import InputFile, InputRow, MalformedRow
from dualwrite.loader.load import load
from tests.support.loader.input_files import FakeDualWrite, csv_text, job_for, make_database, table_rows, write_input

ENCODINGS = ["utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16", "utf-16-le", "utf-32", "shift_jis", "cp500"]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return make_database(tmp_path)


def rows_of(path: Path, form: InputFormat) -> list[InputRow]:
    with InputFile(path, form) as source:
        return list(source.rows())


def refused(path: Path, form: InputFormat) -> str:
    with pytest.raises((InputError, ConfigurationError)) as error:
        rows_of(path, form)
    return str(error.value)


@pytest.mark.parametrize("name", ["f.tsv", "f.tsv.gz", "F.TSV"])
def test_fields_of_tsv_are_separated_by_tabs(tmp_path: Path, name: str) -> None:
    path = write_input(tmp_path / name, 'id\tname\n1\ta,b\n2\t"c\td"\n')
    assert [row.values["name"] for row in rows_of(path, InputFormat())] == ["a,b", "c\td"]


@pytest.mark.parametrize(("word", "character"), [("tab", "\t"), ("TAB", "\t"), ("\\t", "\t"), (";", ";"), ("|", "|")])
def test_a_delimiter_may_be_named(tmp_path: Path, word: str, character: str) -> None:
    path = write_input(tmp_path / "f.csv", f"id{character}name\n1{character}a\n")
    assert rows_of(path, InputFormat(delimiter=parsed_delimiter(word))) == [InputRow(2, {"id": "1", "name": "a"})]


@pytest.mark.parametrize("word", ["", "ab", '"', "\n", "\r", "\0"])
def test_a_delimiter_that_csv_cannot_have_is_refused(word: str) -> None:
    with pytest.raises(ConfigurationError, match="use one character, such as ';', or the word tab"):
        parsed_delimiter(word)


def test_the_format_may_be_named_where_the_file_name_tells_another_or_none(tmp_path: Path) -> None:
    path = write_input(tmp_path / "data.txt", "id\tname\n1\ta\n")
    assert "is of an unknown kind" in refused(path, InputFormat())
    assert "add --format" in refused(path, InputFormat())
    assert rows_of(path, InputFormat("tsv")) == [InputRow(2, {"id": "1", "name": "a"})]


def test_json_lines_have_no_delimiter(tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.jsonl", "{}")
    assert refused(path, InputFormat(delimiter=";")) == "--delimiter is for CSV and TSV; f.jsonl holds JSON lines"


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (("id\tname",), "; its fields look separated by tab: add --delimiter tab"),
        (("id;name",), "; its fields look separated by ';': add --delimiter ';'"),
        (("id|name",), "; its fields look separated by '|': add --delimiter '|'"),
        (("id",), ""),
        (("id", "a;b"), ""),
    ],
)
def test_a_header_of_one_name_with_a_delimiter_in_it_gets_a_hint(columns: tuple[str, ...], hint: str) -> None:
    assert delimiter_hint(columns) == hint


def test_a_load_with_another_delimiter_than_the_files_is_refused_with_the_hint(engine: Engine, tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.csv", "id\tname\n1\ta\n")
    with pytest.raises(InputError) as error:
        load(job_for(path), engine, FakeDualWrite(engine))
    assert str(error.value) == (
        "f.csv: table flights has no column 'id\\tname'; it has id, name, note; "
        "its fields look separated by tab: add --delimiter tab"
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["f.csv", "f.csv.gz", "f.csv.zip"])
def test_every_encoding_gives_the_same_rows(tmp_path: Path, encoding: str, name: str) -> None:
    word = "ソ表\n能" if encoding == "shift_jis" else "été\nñ"
    path = write_input(tmp_path / name, f'id,name\r\n1,"{word}"\r\n2,b\r\n'.encode(encoding))
    assert rows_of(path, InputFormat(encoding=parsed_encoding(encoding))) == [
        InputRow(2, {"id": "1", "name": word}),
        InputRow(4, {"id": "2", "name": "b"}),
    ]


@pytest.mark.parametrize("word", ["utf-9", "base64", "rot13", "", "a\0b"])
def test_a_name_of_no_encoding_is_refused(word: str) -> None:
    with pytest.raises(ConfigurationError, match="Python knows no such encoding; use utf-8, cp1252"):
        parsed_encoding(word)


def test_a_line_in_another_encoding_is_refused_with_its_line_and_the_option(tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.csv", "id,name\n1,\xe9\n".encode("cp1252"))
    assert refused(path, InputFormat()) == "f.csv, line 2: is not UTF-8 (byte 3); is it in another --encoding?"


def test_utf_16_that_ends_in_half_a_character_is_refused(tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.csv", "id\n1\n".encode("utf-16") + b"x")
    assert refused(path, InputFormat(encoding="utf-16")).startswith("f.csv is not utf-16 beyond line ")
    path = write_input(tmp_path / "f.csv", "id\n1\n".encode("utf-16-le"))  # without its byte order mark
    assert refused(path, InputFormat(encoding="utf-16")) == "f.csv is not utf-16 beyond line 0"


def test_a_load_that_met_another_encoding_goes_on_once_it_is_named(engine: Engine, tmp_path: Path) -> None:
    """The encoding is no part of the identity: the rows before are the same in both."""
    path = write_input(tmp_path / "f.csv", ("id,name\n" + csv_text(4) + "5,\xe9\n").encode("cp1252"))
    with pytest.raises(InputError, match=r"line 6: is not UTF-8.*; the 3 rows before this batch are loaded"):
        load(job_for(path), engine, FakeDualWrite(engine))
    load(job_for(path, form=InputFormat(encoding="cp1252")), engine, FakeDualWrite(engine))
    assert table_rows(engine)[3:] == [(4, "name 4"), (5, "é")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (InputFormat(encoding="cp1252"), InputFormat(encoding="cp437")),
        (InputFormat(encoding="cp1252"), InputFormat(encoding="utf-16-le")),
        (InputFormat(encoding="cp1252"), InputFormat(encoding="cp1252", delimiter="\x1f")),
    ],
)
def test_a_load_does_not_go_on_where_its_rows_would_have_been_others(
    engine: Engine, tmp_path: Path, first: InputFormat, second: InputFormat
) -> None:
    text = "name\n\xe9\n" if second.delimiter else "id,name\n1,\xe9\n"
    path = write_input(tmp_path / "f.csv", text.encode("cp1252"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE names (name TEXT)")
    table = "names" if second.delimiter else "flights"
    load(job_for(path, form=first, table=table), engine, FakeDualWrite(engine))
    with pytest.raises(InputError):
        load(job_for(path, form=second, table=table), engine, FakeDualWrite(engine))


@pytest.mark.parametrize("text", ['[{"id": 1},\n{"id": 2}]', '\n[\n  {"id": 1}\n]\n'])
def test_a_json_array_is_named_as_such(tmp_path: Path, text: str) -> None:
    path = write_input(tmp_path / "f.json", text)
    with InputFile(path) as source, pytest.raises(InputError, match="expected JSON lines") as error:
        list(source.items())
    assert str(error.value).endswith("but this begins a JSON array; convert it with: jq -c '.[]'")


def test_a_row_of_one_line_that_is_malformed_leaves_the_next_one_alone(tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.csv", b'id,name\n1,"a"b\n2,\xff\n3,c\0\n4\n5,e\n')
    with InputFile(path) as source:
        items = [(item, source.raw()) for item in source.items()]
    assert [raw for _, raw in items] == [b'1,"a"b\n', b"2,\xff\n", b"3,c\0\n", b"4\n", b"5,e\n"]
    assert [type(item) for item, _ in items] == [MalformedRow] * 4 + [InputRow]


@pytest.mark.parametrize("text", ['id,name\n1,"a\n2,b\n3,c\n', 'id,name\n1,"a\n2,"b\n'])
def test_a_quote_that_may_have_swallowed_good_rows_ends_the_reading(tmp_path: Path, text: str) -> None:
    with (
        InputFile(write_input(tmp_path / "f.csv", text)) as source,
        pytest.raises(InputError, match=r"f\.csv, line 2: "),
    ):
        list(source.items())


def test_a_byte_order_mark_is_no_part_of_a_name_in_utf_16(tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.csv", codecs.BOM_UTF16_BE + "id\n1\n".encode("utf-16-be"))
    assert rows_of(path, InputFormat(encoding="utf-16")) == [InputRow(2, {"id": "1"})]
