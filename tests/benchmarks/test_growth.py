"""Cost against size: the exponents, and which of them are marked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.growth.tables import GrowthTable, exponent
from benchmarks.page import HOME


@pytest.mark.parametrize(("larger", "expected"), [(1.0, 0.0), (10.0, 1.0), (100.0, 2.0)])
def test_the_exponent_is_the_slope_in_a_log_log_plot(larger: float, expected: float) -> None:
    assert exponent(10, 1.0, 100, larger) == pytest.approx(expected)


def test_what_grows_faster_than_linearly_at_the_largest_sizes_is_marked() -> None:
    samples = {
        size: {"square, ms": size**2, "linear, ms": 3.0 * size, "one record, µs": 1.0 * size, "end one, µs": 1.0 * size}
        for size in (10, 100)
    }
    table = GrowthTable("things", samples)
    assert [line for line in table.lines if table.grows_too_fast(line)] == [
        "square, ms",
        "one record, µs",
        "end one, µs",
    ]
    rows = list(table.markdown())
    assert "| square, ms | 100 | 10,000 | 2.00 | faster than linear |" in rows
    assert "| linear, ms | 30 | 300 | 1.00 |  |" in rows


@pytest.mark.slow
def test_growth_is_measured(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.growth", "--sizes", "1", "2", f"--json={report}", "--figures"]
    for name in ("partitions", "topics", "connections", "segments", "transactions", "records"):
        done = subprocess.run([*command, name], cwd=HOME, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (figure,) = json.loads(report.read_text())["figures"]
        assert list(figure["samples"]) == ["1", "2"]
        assert all(value >= 0 for value in figure["samples"]["2"].values())
