"""Random requests of every API and version, and frames that are almost requests. A seed repeats them."""

import math
import random
import struct
import uuid
from typing import Any

from dualwrite.broker.api.routes import ROUTES
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.header import BatchFields
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import write_request
from dualwrite.wire.frames import with_size
from tests.support.requests.calls import fetch_request
from tests.support.requests.group_calls import join_request
from tests.support.wire_schemas import fields_of, structure_of

EVERY_API = [(key, version) for key, route in ROUTES.items() for version in route.versions]
NAMES = ("", "t", "t", "g", "app", "other", "retention.ms", "0", "1", "x" * 300, "é", "a/b", "range", "consumer")
_EXTREMES = tuple(map(bytes.fromhex, ("7fffffff", "ffffffff", "80000000", "00000000", "ffffffff0f")))
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_MOST_PARTITIONS = 3
_FIRST_WITHOUT_TOPIC_NAMES = 13


def random_frame(rng: random.Random) -> bytes:
    """A frame with its size: a valid request, a damaged one, or rubbish."""
    key, version = rng.choice(EVERY_API)
    frame = write_request(key, version, rng.getrandbits(31), "fuzz", _request(key, version, rng))
    kind = rng.random()
    if kind < 0.45:
        return with_size(frame)
    if kind < 0.9:
        return with_size(mutated(frame, rng))
    if kind < 0.95:
        return mutated(with_size(frame), rng)  # also its size
    return rng.randbytes(rng.randint(0, 200))


def mutated(data: bytes, rng: random.Random) -> bytes:
    """``data`` with a few damages."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 50))
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 2:
            out[at:at] = rng.randbytes(length)
        elif kind == 3:
            del out[at : at + length]
        elif kind == 4:
            extreme = rng.choice(_EXTREMES)
            out[at : at + len(extreme)] = extreme
        elif kind == 5:
            out[at:at] = out[at : at + length]
        else:
            del out[at:]
    return bytes(out)


def _request(key: ApiKey, version: int, rng: random.Random) -> Any:
    message: Any = APIS[key].request
    request = _filled(message, structure_of(message), version, rng)
    if key is ApiKey.CREATE_TOPICS:
        for topic in request.topics:
            topic.num_partitions = min(topic.num_partitions, _MOST_PARTITIONS)
    if key is ApiKey.CREATE_PARTITIONS:
        for topic in request.topics:
            topic.count = min(topic.count, _MOST_PARTITIONS)
    return request


def _filled(container: Any, of: Any, version: int, rng: random.Random) -> Any:
    fields = {field.name: _value(field, version, rng) for field in fields_of(of, version)}
    return container(version=version, **fields)


def _value(field: Any, version: int, rng: random.Random) -> Any:
    if field.is_struct_array():
        return [_filled(field.data_class, field.array_of, version, rng) for _ in range(rng.choice((0, 1, 1, 2)))]
    if field.is_struct():
        return _filled(field.data_class, field, version, rng)
    if field.type_str.startswith("[]"):
        return [_simple(field.type_str[2:], rng) for _ in range(rng.randrange(3))]
    return _simple(field.type_str, rng)


def _simple(kind: str, rng: random.Random) -> Any:
    if kind in _BITS:
        bits = _BITS[kind]
        low = 0 if kind == "int64" else -(2**bits)
        return rng.choice((0, 0, 1, 2, -1 if low else 5, 2**bits - 1, low, rng.randint(low, 2**bits - 1)))
    return {
        "bool": lambda: rng.random() < 0.5,
        "float64": lambda: rng.choice((0.0, -1.0, 1.5, math.inf, math.nan)),
        "string": lambda: rng.choice(NAMES),
        "bytes": lambda: rng.randbytes(rng.randrange(30)),
        "records": lambda: _records(rng),
        "uuid": lambda: uuid.UUID(int=rng.choice((0, 1, rng.getrandbits(128)))),
        "bitfield": lambda: set(rng.sample(range(31), rng.randrange(4))),
    }[kind]()


def _records(rng: random.Random) -> bytes:
    count = rng.randint(1, 3)
    fields = BatchFields(ProducerIdentity(rng.randrange(4), rng.randrange(3)), 0, transactional=rng.random() < 0.3)
    batch = build_batch([Record(None, rng.randbytes(rng.choice((1, 100, 50_000))))] * count, fields)
    return bytes(batch) if rng.random() < 0.5 else mutated(bytes(batch), rng)


def long_poll(rng: random.Random) -> bytes:
    """A frame with a request that waits for weeks: for records, or for the members of a group."""
    weeks_ms = 2**31 - 1
    if rng.random() < 0.5:
        key, request = ApiKey.FETCH, fetch_request("t", max_wait_ms=weeks_ms, min_bytes=weeks_ms)
    else:
        key, request = ApiKey.JOIN_GROUP, join_request("g", rebalance_timeout_ms=weeks_ms)
    version = rng.choice([version for version in ROUTES[key].versions if version < _FIRST_WITHOUT_TOPIC_NAMES])
    return with_size(write_request(key, version, 1, "fuzz", request))


def half_large_frame(rng: random.Random) -> bytes:
    """The beginning of a frame that is never finished."""
    size = rng.choice((40_000, 1_000_000, 50_000_000))
    return struct.pack(">i", size) + rng.randbytes(min(size - 1, rng.choice((10, 39_000, 100_000))))
