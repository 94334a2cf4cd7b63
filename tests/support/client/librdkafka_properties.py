"""librdkafka itself, as confluent-kafka contains it: its own list of settings, and its partitioners' results."""

import ctypes
import functools
import re
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import cimpl

# A symbol is looked for in a library and in those that it is linked with.
LIBRARY = ctypes.CDLL(cimpl.__file__)
_LIBC = ctypes.CDLL(None)
_LIBC.fopen.restype = ctypes.c_void_p
_LIBC.fclose.argtypes = [ctypes.c_void_p]
LIBRARY.rd_kafka_conf_properties_show.argtypes = [ctypes.c_void_p]


class Property(NamedTuple):
    """A line of librdkafka's table of settings."""

    name: str
    scope: str
    """* everybody's, P a producer's, C a consumer's."""
    range: str
    default: str

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The least and the largest value, if it is a number."""
        found = re.fullmatch(r"(-?\d+) \.\. (\d+)", self.range)
        return (int(found[1]), int(found[2])) if found else None


def properties(scratch: Path) -> list[Property]:
    """Every setting, as ``rd_kafka_conf_properties_show`` writes them into the file ``scratch``."""
    stream = _LIBC.fopen(str(scratch).encode(), b"w")
    LIBRARY.rd_kafka_conf_properties_show(stream)
    _LIBC.fclose(stream)
    rows = (line.split(" | ") for line in scratch.read_text().splitlines() if line.count(" | ") >= 4)
    return [Property(*(cell.strip() for cell in row[:4])) for row in rows if not row[0].startswith("Property")]


@functools.cache
def _partitioner(name: str) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
    function = getattr(LIBRARY, f"rd_kafka_msg_partitioner_{name}")
    function.restype = ctypes.c_int32
    opaque = ctypes.c_void_p
    function.argtypes = [opaque, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32, opaque, opaque]
    return function


def partition_of(name: str, key: bytes | None, count: int) -> int:
    """What librdkafka's partitioner gives where it is not random: that would need a topic."""
    return int(_partitioner(name)(None, key, len(key or b""), count, None, None))
