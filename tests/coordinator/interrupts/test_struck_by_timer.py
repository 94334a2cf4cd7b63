"""A real timer, whose signal strikes units of work at random instants, SQLAlchemy's code included."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_timer_at_random_instants_harms_no_other_thread_and_both_sides_agree(sqlite_url: str, seed: int) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.coordinator.timer_program", sqlite_url, "6", str(seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    strikes, units, others = map(int, run.stdout.split())
    assert strikes > 20
    assert units > strikes // 2
    assert others > 20
