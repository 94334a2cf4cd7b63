"""Records as lines of columns, or as lines of JSON."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from dualwrite.admin.views import TopicRecord
from dualwrite.cli.printing import as_json_text, printable

FORMATS = ("text", "json", "hex")
_NONE = "-"
_NO_JSON = object()


class RecordLines:
    """Makes lines of records. A column becomes wider when a record needs it; its heads are above the first record.

    :param key_format: one of FORMATS, for keys; ``value_format`` likewise for values and the values of headers.
    :param is_json: True for a line of JSON for each record, with every field.
    """

    def __init__(
        self, key_format: str, value_format: str, *, timestamps: bool, headers: bool, is_json: bool = False
    ) -> None:
        self._formats = key_format, value_format
        self._has_timestamps = timestamps
        self._has_headers = headers
        self._is_json = is_json
        self._widths: list[int] = []

    def of(self, records: Sequence[TopicRecord]) -> Iterator[str]:
        """The lines of ``records``, laid out together."""
        if self._is_json:
            yield from (as_json_text(self._as_json(record), is_line=True) for record in records)
            return
        rows = [self._row(record) for record in records]
        if not self._widths:
            rows.insert(0, self._heads())
            self._widths = [0] * len(rows[0])
        self._widths = [max(width, *(len(row[at]) for row in rows)) for at, width in enumerate(self._widths)]
        for row in rows:
            # The last column is not padded: values may be long.
            padded = [cell.ljust(width) for cell, width in zip(row[:-1], self._widths, strict=False)]
            yield "  ".join([*padded, row[-1]]).rstrip()

    def _heads(self) -> list[str]:
        time = ["TIME"] * self._has_timestamps
        return ["PARTITION", "OFFSET", *time, "STATE", "TRANSACTION", "KEY", *["HEADERS"] * self._has_headers, "VALUE"]

    def _row(self, record: TopicRecord) -> list[str]:
        key, value = (
            _NONE if record.state.is_marker else _as_text(data, form)
            for data, form in zip((record.key, record.value), self._formats, strict=True)
        )
        headers = ",".join(f"{name}={_as_text(data, self._formats[1])}" for name, data in record.headers) or _NONE
        return [
            str(record.partition.partition),
            str(record.offset),
            *[_time(record.timestamp)] * self._has_timestamps,
            record.state.value + "-hidden" * (record.state.may_be_read and not record.is_visible),
            printable(record.transactional_id or _NONE),
            key,
            *[printable(headers)] * self._has_headers,
            value,
        ]

    def _as_json(self, record: TopicRecord) -> dict[str, Any]:
        key_format, value_format = self._formats
        is_marker = record.state.is_marker
        return {
            "topic": record.partition.topic,
            "partition": record.partition.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "state": record.state,
            "visible": record.is_visible,
            "producer": str(record.producer) if record.producer else None,
            "transactional_id": record.transactional_id,
            "key": None if is_marker else decoded(record.key, key_format),
            "value": None if is_marker else decoded(record.value, value_format),
            "headers": [{"name": name, "value": decoded(data, value_format)} for name, data in record.headers],
        }


def decoded(data: bytes | None, form: str) -> Any:
    """``data`` in one of FORMATS, as a value for JSON. What is not JSON is shown as text; bytes that are not UTF-8 are
    shown as ``\\xff``."""
    if data is None:
        return None
    if form == "hex":
        return data.hex()
    if form == "json":
        value = _json(data)
        if value is not _NO_JSON:
            return value
    return data.decode(errors="backslashreplace")


def _json(data: bytes) -> Any:
    """The JSON value in ``data``; _NO_JSON if it is none. NaN, and numbers out of the range of floats, are none."""
    try:
        value = json.loads(data)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return _NO_JSON
    return value


def _as_text(data: bytes | None, form: str) -> str:
    value = decoded(data, form)
    if value is None and data is None:
        return "null"
    text = value if isinstance(value, str) and form != "json" else json.dumps(value, ensure_ascii=False)
    return printable(text) or '""'


def _time(milliseconds: int) -> str:
    """The moment in ISO 8601; the number itself if it is out of Python's range."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
