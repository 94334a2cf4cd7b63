"""The schemas of kafka-python's messages: their fields, and the decoders that were compiled from them.

kafka-python shows a message's schema in private attributes only. The product compiles its decoders from the same ones
(``dualwrite/wire/codec.py``), and keeps them for the life of the process.
"""

from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.wire import codec


def structure_of(message: Any) -> Any:
    """The schema of the message class ``message``."""
    return message._struct


def fields_of(structure: Any, version: int) -> list[Any]:
    """The fields of a schema, or of an array's entries, that ``version`` has."""
    return [field for field in structure._fields if field.for_version_q(version)]


def compile_again(monkeypatch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Let every decoder be compiled anew, and call ``note`` whenever one is."""
    emit = codec._emit_bounded_varint

    def emit_and_note(*arguments: Any) -> None:
        note()
        emit(*arguments)

    monkeypatch.setattr(codec, "_emit_bounded_varint", emit_and_note)
    codec._decoder.cache_clear()
