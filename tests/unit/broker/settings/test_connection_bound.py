"""The bound of the memory of all connections is the product that docs/broker.md states."""

import re
from pathlib import Path

from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.settings.broker_settings import SETTINGS

DOCS = Path(__file__).parents[4] / "docs" / "broker.md"
KIB, MIB, GIB = 1024, 1024**2, 1024**3


def test_the_default_number_of_connections_bounds_their_memory_as_the_page_says() -> None:
    options = BrokerOptions(Path("data"))
    most = options.connections(1_000_000).most
    assert most == 8192
    assert options.memory_bytes == 256 * MIB
    plain = most * 160 * KIB + 2 * 256 * MIB + 32 * MIB
    encrypted = most * 672 * KIB + 3 * 256 * MIB + 32 * MIB
    assert round(plain / GIB, 1) == 1.8
    assert round(encrypted / GIB) == 6
    page = re.sub(r"\s+", " ", DOCS.read_text())
    assert re.search(
        r"8192 connections hold 1.8 GiB at most \(8192 . 160 KiB, twice 256 MiB, and 32 MiB\), and 6 GiB", page
    )
    assert SETTINGS["max.connections"].default == "8192"


def test_fewer_open_files_allow_fewer_connections() -> None:
    assert BrokerOptions(Path("data")).connections(1000).most == 1000
