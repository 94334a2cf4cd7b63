"""The format of an input: its kind, its encoding and the delimiter of its fields. Pure."""

import codecs
from dataclasses import dataclass, replace

from dualwrite.errors import ConfigurationError, InputError

CSV, TSV, JSON_LINES = "csv", "tsv", "jsonl"
KINDS = (CSV, TSV, JSON_LINES)
"""The kinds of an input."""

_DELIMITERS = {CSV: ",", TSV: "\t"}
_SUFFIXES = {"csv": CSV, "tsv": TSV, "jsonl": JSON_LINES, "ndjson": JSON_LINES, "json": JSON_LINES}
_NAMES = {"tab": "\t", "\\t": "\t"}
_SHOWN = {"\t": "tab", ";": "';'", "|": "'|'"}
_UTF_8 = "utf-8"


@dataclass(frozen=True, slots=True)
class InputFormat:
    """The format of an input.

    :param kind: one of KINDS; None for the kind that the file's name says.
    :param encoding: the encoding of the text, by a name that Python knows.
    :param delimiter: the character between two fields; None for the comma of CSV and the tab of TSV.
    """

    kind: str | None = None
    encoding: str = _UTF_8
    delimiter: str | None = None

    @property
    def has_fields(self) -> bool:
        """True if a row is a line of fields, and the first line names the columns."""
        return self.kind in _DELIMITERS

    def of(self, name: str, shown: str) -> "InputFormat":
        """This format with every part known, for a text that is called ``name``.

        :param shown: the name of the input, for the message.
        :raises InputError: if neither the format nor the name tells the kind.
        :raises ConfigurationError: if JSON lines have a delimiter.
        """
        kind = self.kind or _SUFFIXES.get(name.rpartition(".")[2].lower() if "." in name else "")
        if kind is None:
            kinds = ".csv, .tsv, .jsonl, .ndjson or .json, alone, as .gz or in .zip"
            raise InputError(f"{shown}: {name!r} is of an unknown kind; use {kinds}; or add --format")
        if kind == JSON_LINES and self.delimiter is not None:
            raise ConfigurationError(f"--delimiter is for CSV and TSV; {shown} holds JSON lines")
        return replace(self, kind=kind, delimiter=self.delimiter or _DELIMITERS.get(kind))


def parsed_delimiter(text: str) -> str:
    """The delimiter that the user calls ``text``: a character, or ``tab``.

    :raises ConfigurationError: if it is not one character, or one that CSV needs for itself.
    """
    delimiter = _NAMES.get(text.lower(), text)
    if len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise ConfigurationError(f"--delimiter {text!r}: use one character, such as ';', or the word tab")
    return delimiter


def parsed_encoding(text: str) -> str:
    """Python's name of the encoding that the user calls ``text``.

    :raises ConfigurationError: if Python knows no such encoding of text.
    """
    try:
        name = codecs.lookup(text).name
        "\n".encode(name)
    except (LookupError, ValueError):
        raise ConfigurationError(
            f"--encoding {text!r}: Python knows no such encoding; use utf-8, cp1252, latin-1 or utf-16, for example"
        ) from None
    return _UTF_8 if name == "utf-8-sig" else name


def is_read_by_lines(encoding: str) -> bool:
    """True if a line ends with the byte of a newline in ``encoding``; false for UTF-16, for example."""
    return "\n".encode(encoding) == b"\n"


def delimiter_hint(columns: tuple[str, ...]) -> str:
    """The advice to name a delimiter, if the header ``columns`` is one name that holds one; otherwise empty."""
    if len(columns) != 1:
        return ""
    held = next((delimiter for delimiter in _SHOWN if delimiter in columns[0]), None)
    return "" if held is None else f"; its fields look separated by {_SHOWN[held]}: add --delimiter {_SHOWN[held]}"
