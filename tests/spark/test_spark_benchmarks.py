"""The benchmarks of Spark's writers run, and find the rows of every contender on both sides."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.spark_batches import CONTENDERS, WHOLE
from tests.support.spark.sessions import JAVA

HOME = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.jvm
def test_all_contenders_and_the_driver_by_itself_are_measured(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.spark_batches", "--rounds=1", "--warm-up=0", f"--json={report}"]
    command += ["--figures", "rate", "driver", "--rows=100", "--partitions=2", "--many", "2"]
    quick = {**os.environ, "JDK_JAVA_OPTIONS": JAVA}  # nobody looks at the rates
    done = subprocess.run(command, cwd=HOME, env=quick, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rate, driver = json.loads(report.read_text())["figures"]
    assert list(rate["samples"]) == list(CONTENDERS)
    assert all(sample["per second"] > 0 for (sample,) in rate["samples"].values())
    ((sample,),) = driver["samples"].values()
    assert list(driver["samples"]) == [WHOLE]
    assert list(sample) == ["decision, s", "completion, s", "recovery to commit, s", "recovery to abort, s"]
    assert "### driver: 2 prepared transactions" in done.stdout
