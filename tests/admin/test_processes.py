"""The daily verbs as processes: a reader that goes away, Ctrl-C, a question at a terminal, a broker that is down."""

import os
import shlex
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.admin.admin_site import AdminSite
from tests.support.waiting import PATIENCE_SECONDS

COMMAND = [sys.executable, "-m", "dualwrite"]
WITHOUT_EXTRAS = """
import sys
from dualwrite.extras import EXTRAS

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {*EXTRAS, "sqlalchemy", "confluent_kafka"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from dualwrite.cli.main import main
topic, servers = sys.argv[1:]
for words in (["topics", "describe", topic], ["consume", topic], ["groups", "list"], ["acls", "list"]):
    print(words[0], main([*words, "--bootstrap-servers", servers]))
"""


def started(site: AdminSite, *words: str, **options: object) -> "subprocess.Popen[str]":
    """``dualwrite WORDS`` on the cluster of ``site``, as a process."""
    servers = ["--bootstrap-servers", site.config["bootstrap.servers"]]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *words, *servers], text=True, **{**streams, **options})  # type: ignore[call-overload]


def test_follow_prints_each_record_at_once_and_ctrl_c_ends_it_with_one_line(site: AdminSite) -> None:
    topic = site.topic()
    site.plain(topic, "first")
    process = started(site, "consume", topic, "--follow")
    assert process.stdout is not None
    heads, first = process.stdout.readline(), process.stdout.readline()
    assert heads.split() == ["PARTITION", "OFFSET", "STATE", "TRANSACTION", "KEY", "VALUE"]
    assert first.split()[4] == "first"
    site.producer().write(topic, "second").commit()
    assert process.stdout.readline().split()[4] == "second"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (130, "", "dualwrite: interrupted after 2 records\n")


@pytest.mark.slow_cases
@pytest.mark.parametrize("more", [(), ("--json",), ("--follow",)])
def test_a_reader_that_goes_away_ends_the_command_quietly(site: AdminSite, more: tuple[str, ...]) -> None:
    topic = site.topic()
    site.plain(topic, *map(str, range(2000)), value="x" * 200)
    process = started(site, "consume", topic, *more)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_SECONDS) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_command_without_stdout_does_its_work(site: AdminSite, closed: str) -> None:
    topic = site.topic()
    site.plain(topic, "a")
    words = [*COMMAND, "consume", topic, "--bootstrap-servers", site.config["bootstrap.servers"]]
    done = subprocess.run(
        ["sh", "-c", f"{shlex.join(words)} {closed}"], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow_cases
@pytest.mark.parametrize(("answer", "code"), [("yes\n", 0), ("y\n", 0), ("\n", 2), ("no\n", 2), ("", 2)])
def test_a_terminal_is_asked_before_a_topic_is_deleted(site: AdminSite, answer: str, code: int) -> None:
    topic = site.topic()
    ours, theirs = os.openpty()
    try:
        process = started(site, "topics", "delete", topic, stdin=theirs)
        os.close(theirs)
        asked = threading.Thread(target=os.write, args=(ours, answer.encode() or b"\x04"))
        asked.start()
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        asked.join()
    finally:
        os.close(ours)
    assert process.returncode == code
    question, _, complaint = err.partition("? [y/N] ")
    assert question == f"delete topic {topic} with all records"
    assert complaint == ("" if code == 0 else "dualwrite: not confirmed: nothing was changed\n")
    assert out == (f"topic {topic}: deleted\n" if code == 0 else "")
    assert (topic in site.run("topics", "list").out) is (code != 0)


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "list"),
        ("consume", "t"),
        ("groups", "list"),
        ("acls", "list"),
    ],
    ids=lambda words: words[0],
)
def test_a_broker_that_is_down_is_one_line(
    site: AdminSite, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualwrite.cli.cluster.REACH_SECONDS", 0.1)
    code, out, err = site.run(*words, servers="127.0.0.1:1")
    assert (code, out) == (2, "")
    assert err.startswith("dualwrite: broker 127.0.0.1:1: Connection refused (gave up after 0.1 s): is it running?")
    assert err.count("\n") == 1


def test_no_extra_is_needed_and_neither_sqlalchemy_nor_librdkafka(site: AdminSite) -> None:
    topic = site.topic()
    program = [sys.executable, "-c", WITHOUT_EXTRAS, topic, site.config["bootstrap.servers"]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    ends = [line for line in done.stdout.splitlines() if line.endswith((" 0", " 2"))]
    assert {"topics 0", "consume 0", "groups 0", "acls 2"} <= set(ends), done.stderr
    assert "SECURITY_DISABLED" in done.stderr


def test_output_for_a_pipe_has_no_question_and_no_colour(site: AdminSite) -> None:
    topic = site.topic()
    done = subprocess.run(
        [*COMMAND, "topics", "list", "--bootstrap-servers", site.config["bootstrap.servers"]],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines() if topic in line] == [[topic, "1", "1"]]
