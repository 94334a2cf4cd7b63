"""Rows of random values, of all of Spark's types."""

import random
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

SCHEMA = """
    b boolean, y byte, s short, i int, l long, d double, f float, n decimal(20,6), w decimal(38,0), t string, x binary,
    day date, at timestamp, plain timestamp_ntz, a array<int>, aa array<array<string>>, m map<string,double>,
    mi map<int,string>, st struct<p: string, q: struct<`r r`: timestamp, s: decimal(4,2)>>, ast array<struct<u: int>>
"""
ZONES = ["UTC", "Europe/Vienna", "America/St_Johns", "+05:30", "GMT-3"]


def some(chance: random.Random) -> list[Any]:
    """A row of SCHEMA. Decimals and doubles have few digits: how many Java 17 writes of others, no newer Java does."""
    text = "".join(chance.choice('aé"\\/\n\t\x01\x1f\x7f😀\u2028 ') for _ in range(chance.randrange(8)))
    at = datetime(1900, 1, 1) + timedelta(microseconds=chance.randrange(6 * 10**15))
    small = round(chance.uniform(-1000, 1000), 3)
    single = struct.unpack("f", struct.pack("f", chance.choice([0.1, 1e7, 123.25, -3e-5, 16777216.0])))[0]
    row = [
        chance.random() < 0.5,
        chance.randrange(-128, 128),
        chance.randrange(-(2**15), 2**15),
        chance.randrange(-(2**31), 2**31),
        chance.randrange(-(2**63), 2**63),
        small * 10.0 ** chance.choice([0, 0, 5, 9]),
        single,
        Decimal(chance.randrange(10**12)).scaleb(-6),
        Decimal(chance.randrange(10**30)),
        text,
        bytearray(chance.randbytes(chance.randrange(5))),
        date(1, 1, 1) + timedelta(days=chance.randrange(3_000_000)),
        at,
        at,
        [1, None, chance.randrange(9)],
        [[text, None], None, []],
        {text: small, "k": None},
        {chance.randrange(9): text},
        (text, (at, Decimal("1.50"))),
        [(None,), None, (3,)],
    ]
    return [None if chance.random() < 0.1 else value for value in row]
