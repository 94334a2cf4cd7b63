"""The bundled broker beside franz-go's broker in memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kfake.contender import why_no_kfake
from benchmarks.page import HOME

pytestmark = [pytest.mark.slow, pytest.mark.go]


def test_transactions_are_measured_beside_kfake(tmp_path: Path) -> None:
    missing = why_no_kfake()
    if missing is not None:
        if "go" in os.environ.get("DUALWRITE_REQUIRE", "").split():
            pytest.fail(missing)
        pytest.skip(missing)
    report = tmp_path / "report.json"
    options = ["--beside=kfake", "--durabilities=os", "--rounds=1", "--warm-up=0", "--seconds=0.2", "--producers", "2"]
    command = [sys.executable, "-m", "benchmarks.broker", *options, f"--json={report}", "--figures"]
    done = subprocess.run(
        [*command, "transactions", "native-transactions"], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(report.read_text())["figures"]
    assert [figure["figure"] for figure in figures] == [
        "transactions beside kfake",
        "native-transactions beside kfake",
    ]
    for figure in figures:
        assert set(figure["samples"]) == {"dualwrite", "kfake"}
        assert figure["ratios"]["2 producers, per second"] > 0
        assert figure["ratios"]["2 producers, broker CPU"] is not None
