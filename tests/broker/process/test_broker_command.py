"""``dualwrite broker``: its flags, its ready file, its one line for every mistake, and its clean stop."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dualwrite.broker.broker import write_ready_file
from dualwrite.broker.clients.listeners import PLAINTEXT_LISTENER
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.process.ending import STOP_EXIT_CODE
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.cli.main import main
from dualwrite.errors import ConfigurationError
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.broker_process import COMMAND, RunningBroker, in_directory, refused
from tests.support.requests.admin_calls import BROKER, set_config
from tests.support.requests.calls import (
    ask_for_topics,
    batch,
    fetch_request,
    metadata,
    new_topic,
    only_partition,
    produce,
    read_all,
    wanted_topic,
)
from tests.support.requests.group_calls import joined_member
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS, eventually

FOR_EVER_MS = 600_000


Start = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers on ``tmp_path/data`` and kills those that a test leaves behind."""
    running: list[RunningBroker] = []

    def begin(*arguments: str, listen: str = "127.0.0.1:0", prefix: tuple[str, ...] = ()) -> RunningBroker:
        scratch = tmp_path / f"run-{len(running)}"
        scratch.mkdir()
        data = ("--data-dir", str(tmp_path / "data"), "--listen", listen)
        running.append(RunningBroker(scratch, (*data, *arguments), prefix))
        return running[-1]

    yield begin
    for broker in running:
        broker.process.kill()
        broker.process.communicate()


# --- starting


def test_the_ready_file_says_where_a_free_port_was_found(start: Start) -> None:
    address = start().address
    host, _, port = address.partition(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)
    with RawClient(address) as client:
        (node,) = metadata(client).brokers
        assert f"{node.host}:{node.port}" == address


@pytest.mark.slow
def test_the_ready_file_of_an_earlier_broker_is_not_believed(start: Start, tmp_path: Path) -> None:
    earlier, ready = "127.0.0.1:1\n", tmp_path / "ready"
    ready.write_text(earlier)
    start("--ready-file", str(ready))  # the last one given counts
    written = eventually(lambda: ready.exists() and ready.read_text(), lambda text: text not in (False, earlier))
    with RawClient(str(written).splitlines()[0]) as client:
        assert metadata(client).cluster_id


def test_settings_are_given_one_by_one_or_several_at_once(start: Start) -> None:
    broker = start(
        *("--config", "num.partitions=3", "message.max.bytes=300"),
        *("--config", "auto.create.topics.enable=false"),
    )
    with RawClient(broker.address) as client:
        assert metadata(client, "t", create=True).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (made,) = ask_for_topics(client, wanted_topic("t", -1))
        assert made.num_partitions == 3
        assert produce(client, "t", batch([b"x" * 300])).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.slow_cases
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_acknowledged_records_survive_a_kill(start: Start, durability: str) -> None:
    broker = start("--durability", durability)
    with RawClient(broker.address) as client:
        topic = new_topic(client)
        for number in range(20):
            produce(client, topic, batch([b"%d" % number]))
    broker.end(signal.SIGKILL)
    with RawClient(start("--durability", durability).address) as client:
        assert read_all(client, topic) == [b"%d" % number for number in range(20)]


def test_clients_get_the_advertised_address(start: Start) -> None:
    advertised = "advertised.listeners=PLAINTEXT://kafka.example:19092"
    broker = start("--allow-anonymous", "--config", advertised, listen="0.0.0.0:0")
    port = broker.address.rpartition(":")[2]
    with RawClient(f"127.0.0.1:{port}") as client:
        (node,) = metadata(client).brokers
        assert (node.host, node.port) == ("kafka.example", 19092)


@pytest.mark.slow
def test_a_name_may_be_listened_on(start: Start) -> None:
    address = start(listen="localhost:0").address
    assert address.startswith("localhost:")
    with RawClient(address) as client:
        assert metadata(client).brokers[0].host == "localhost"


def test_an_address_of_the_newer_protocol_is_written_in_brackets(start: Start) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    broker = start(listen="[::1]:0")
    address = broker.address
    assert address.startswith("[::1]:")
    with RawClient(address) as client:
        assert metadata(client).brokers[0].host == "::1"
    assert f"listening on {address}, " in broker.log.read_text()


@pytest.mark.slow_cases
@pytest.mark.parametrize("delay_ms", [0, 1])
def test_the_log_of_a_first_consumer_shows_no_timeout(start: Start, delay_ms: int) -> None:
    broker = start("--config", f"group.initial.rebalance.delay.ms={delay_ms}")
    with RawClient(broker.address) as client:
        joined_member(client, "g", "t")
    log = broker.log.read_text()
    assert "did not get" not in log
    assert "Empty" not in log
    assert "group 'g' is Stable in generation 1 with 1 members" in log


def test_every_setting_is_listed_with_its_default_and_allowed_values() -> None:
    done = subprocess.run([*COMMAND, "--list-config"], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines[::3]] == sorted(SETTINGS)
    at = lines.index("log.cleaner.backoff.ms (15000)")
    assert lines[at + 2] == "    LONG; Value must be at least 1"
    assert "log.retention.ms (not set)" in lines


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("--data-dir",)),
        (("--listen", "9092"), ("listen address '9092'", "HOST:PORT")),
        (("--listen", "localhost:http"), ("listen address 'localhost:http'",)),
        (("--listen", "localhost:70000"), ("listen address 'localhost:70000'",)),
        (("--metrics", "9090"), ("metrics address '9090'", "HOST:PORT")),
        (("--listen", "0.0.0.0:0"), ("--config advertised.listeners=PLAINTEXT://HOST:PORT",)),
        (("--durability", "perhaps"), ("--durability", "perhaps")),
        (
            ("--config", "no.such.setting=1"),
            ("unknown broker setting 'no.such.setting'", "--list-config lists all"),
        ),
        (("--config", "num.partition=1"), ("did you mean num.partitions",)),
        (("--config", "retention.ms=1"), ("unknown broker setting 'retention.ms'", "the broker's log.retention.ms")),
        (("--config", "log.dirs=/x"), ("log.dirs=/x are both given", "--data-dir")),
        (("--config", "listeners=/x"), ("listeners=/x", "NAME://HOST:PORT")),
        (
            ("--listen", "127.0.0.1:1", "--config", "listeners=SSL://h:1"),
            ("--listen 127.0.0.1:1 and listeners=SSL://h:1 are both given", "remove one of them"),
        ),
        (("--config-file", "/no/such/file"), ("config file /no/such/file: No such file or directory",)),
        (
            ("--listen", "0.0.0.0:0", "--config", "advertised.listeners=PLAINTEXT://h:1"),
            ("listener PLAINTEXT on 0.0.0.0:0", "authenticates no client", "--allow-anonymous"),
        ),
        (("--config", "num.partitions"), ("'num.partitions'", "key=value")),
        (("--config", "num.partitions=0"), ("num.partitions=0", "between 1 and 10000")),
        (("--config", "num.partitions=many"), ("num.partitions=many",)),
        (("--config", "num.partitions=20000"), ("num.partitions=20000",)),
        (("--config", "auto.create.topics.enable=maybe"), ("auto.create.topics.enable=maybe", "either true or false")),
        (("--config", "advertised.listeners=kafka:9092"), ("NAME://HOST:PORT",)),
        (("--config", "message.max.bytes=" + "9" * 30), ("message.max.bytes",)),
        (("--config", "log.segment.bytes=9999999999"), ("log.segment.bytes=9999999999", "type INT")),
        (("--config", "log.retention.ms="), ("log.retention.ms=: ", "type LONG")),
        (
            ("--config", "queued.max.request.bytes=1000"),
            ("queued.max.request.bytes=1000: it must be at least socket.request.max.bytes, which is 104857600",),
        ),
        (("--config", "num.partitions=1", "num.partitions=2"), ("num.partitions is given twice: '1' and '2'",)),
        (("--stop-timeout", "soon"), ("--stop-timeout", "'soon'")),
        *[
            (("--stop-timeout", text), (f"stop timeout {text}: expected seconds",))
            for text in ("0", "-1", "nan", "inf", "86401")
        ],
        (("--no-such-flag",), ("--no-such-flag",)),
    ],
)
def test_a_mistake_in_the_arguments_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    given = ("--data-dir", str(tmp_path / "data"), *arguments) if arguments else ()
    try:
        code = main(["broker", *given])
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert all(word in line for word in words), line
    assert not (tmp_path / "data").exists()


def test_an_unknown_host_is_named(tmp_path: Path) -> None:
    line = refused("--data-dir", str(tmp_path), "--listen", "no-such-host.invalid:0")
    assert "cannot listen on no-such-host.invalid:0" in line


@pytest.mark.slow
def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--data-dir", str(tmp_path), "--listen", f"127.0.0.1:{port}")
    assert (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; stop the program that has this port, or choose"
        in line
    )
    assert line.endswith("another one with --listen (0: a free one)")


@pytest.mark.slow
def test_a_data_directory_in_use_is_named_and_its_broker_keeps_running(broker: EmbeddedBroker, tmp_path: Path) -> None:
    line = refused(*in_directory(tmp_path / "broker"))
    assert "is in use by another broker" in line
    with RawClient(broker.bootstrap_servers) as client:
        assert metadata(client).cluster_id


@pytest.mark.slow
def test_a_data_directory_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert f"data directory {tmp_path / 'file'}: " in refused(*in_directory(tmp_path / "file"))
    assert f"data directory {tmp_path / 'file' / 'below'}: " in refused(*in_directory(tmp_path / "file" / "below"))


@pytest.mark.slow_cases
@pytest.mark.parametrize("with_properties", [True, False])
def test_a_directory_of_another_kafka_is_refused_and_left_as_it_is(tmp_path: Path, with_properties: bool) -> None:
    log = tmp_path / "t-0" / f"{0:020}.log"
    log.parent.mkdir()
    log.write_bytes(b"records")
    if with_properties:
        (tmp_path / "meta.properties").touch()
        (tmp_path / "__cluster_metadata-0").mkdir()
    before = sorted(tmp_path.rglob("*"))
    line = refused(*in_directory(tmp_path))
    assert f"data directory {tmp_path} must be empty or dualwrite's own" in line
    assert line.endswith(f"but contains {tmp_path / 'meta.properties' if with_properties else log.parent}")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ["notes.txt", ".git/", "release-1/"])
def test_a_directory_of_another_program_is_refused_and_unchanged(tmp_path: Path, name: str) -> None:
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).touch()
    line = refused(*in_directory(tmp_path))
    assert line.endswith(f"{tmp_path} must be empty or dualwrite's own, but contains {tmp_path / name}")
    assert [path.name for path in tmp_path.iterdir()] == [name.removesuffix("/")]


@pytest.mark.slow
def test_a_new_volume_may_be_a_data_directory_and_later_foreign_files_stay(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data" / "lost+found").mkdir(parents=True)
    (tmp_path / "data" / ".gitkeep").touch()
    for _ in range(2):
        broker = start()
        with RawClient(broker.address) as client:
            assert metadata(client).cluster_id
        assert broker.end() == 0
        (tmp_path / "data" / "notes.txt").touch()


@pytest.mark.slow
def test_a_partition_that_was_taken_away_is_named(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
    broker.stop()
    directory = tmp_path / "broker" / f"{topic}-0"
    directory.rename(tmp_path / "away")
    assert f"{directory} is missing" in refused(*in_directory(tmp_path / "broker"))
    (tmp_path / "away").rename(directory)
    broker.start()


@pytest.mark.slow
def test_an_empty_data_directory_name_is_refused() -> None:
    assert "data directory '': name one" in refused("--data-dir", "", "--listen", "127.0.0.1:0")
    with pytest.raises(ConfigurationError, match="data directory '': name one"):
        EmbeddedBroker("")


@pytest.mark.slow
def test_a_ready_file_that_cannot_be_written_is_named_before_anything_starts(tmp_path: Path) -> None:
    ready = tmp_path / "missing" / "ready"
    assert f"ready file {ready}: " in refused(*in_directory(tmp_path / "data"), "--ready-file", str(ready))
    assert f"ready file {tmp_path}: " in refused(*in_directory(tmp_path / "data"), "--ready-file", str(tmp_path))


def test_a_ready_file_that_cannot_be_written_any_more_is_named(tmp_path: Path) -> None:
    ready = tmp_path / "gone" / "ready"
    with pytest.raises(ConfigurationError, match=re.escape(f"ready file {ready}: No such file or directory")):
        write_ready_file(ready, [PLAINTEXT_LISTENER])


@pytest.mark.slow
def test_a_log_that_cannot_be_opened_is_named(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
    broker.stop()
    log = tmp_path / "broker" / f"{topic}-0" / f"{0:020}.log"
    log.unlink()
    log.mkdir()
    assert f"cannot open {log}: " in refused(*in_directory(tmp_path / "broker"))


def test_a_log_that_contradicts_itself_is_named(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
    broker.stop()
    stranger = tmp_path / "broker" / f"{topic}-0" / "backup.log"
    stranger.touch()
    assert str(stranger) in refused(*in_directory(tmp_path / "broker"))


# --- stopping


@pytest.mark.slow_cases
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(start: Start, number: int) -> None:
    broker = start()
    with RawClient(broker.address) as client:
        topic = new_topic(client)
        produce(client, topic, batch([b"v"]))
        assert broker.end(number) == 0
        assert client.read_to_end() == b""
    log = broker.log.read_text()
    assert "Traceback" not in log
    assert log.splitlines()[-1].endswith(": stopped")
    assert not broker.ready_file.exists()
    with RawClient(start().address) as client:
        assert read_all(client, topic) == [b"v"]


@pytest.mark.slow
def test_a_start_logs_the_dynamic_settings_that_override_its_own(start: Start) -> None:
    broker = start()
    with RawClient(broker.address) as client:
        set_config(client, BROKER, "", log_retention_ms="6")
        set_config(client, BROKER, "0", log_retention_ms="5", log_cleanup_policy="")
    assert "that clients changed" not in broker.log.read_text()
    broker.end()
    broker = start("--config", "log.retention.ms=7")
    assert broker.address
    words = "settings that clients changed override --config: log.cleanup.policy=, log.retention.ms=5"
    assert words in broker.log.read_text()


def test_a_stop_that_cannot_write_everything_to_the_disk_exits_with_an_error(start: Start, tmp_path: Path) -> None:
    broker = start("--durability", "os")
    with RawClient(broker.address) as client:
        topic = new_topic(client)
        produce(client, topic, batch([b"v"]))
    shutil.rmtree(tmp_path / "data" / f"{topic}-0")
    assert broker.end() == STOP_EXIT_CODE
    log = broker.log.read_text()
    assert "the broker stops: [Errno 2] No such file or directory" in log
    assert f"{topic}-0" in log
    assert "check the disk" in log
    assert "Traceback" not in log


def test_a_fetch_that_waits_is_answered_at_once_when_it_stops(start: Start) -> None:
    broker = start()
    with RawClient(broker.address) as client:
        topic = new_topic(client)
        waiting = client.send(fetch_request(topic, max_wait_ms=FOR_EVER_MS), 12)
        with RawClient(broker.address) as other:
            metadata(other)  # the fetch was sent before, so it is being handled
        assert broker.end() == 0
        assert only_partition(client.receive(ApiKey.FETCH, 12, waiting)).error_code == ErrorCode.NONE
        assert client.read_to_end() == b""


# --- the limit of open files


def few_files(count: int) -> tuple[str, ...]:
    """A prefix that lets a command open ``count`` files."""
    return ("sh", "-c", f'ulimit -n {count} && exec "$@"', "sh")


@pytest.mark.slow
def test_topics_that_would_need_too_many_files_are_refused(start: Start) -> None:
    broker = start(prefix=few_files(100))
    with RawClient(broker.address) as client:
        assert ask_for_topics(client, wanted_topic("fits", 43))[0].error_code == ErrorCode.NONE  # two are the broker's
        (refusal,) = ask_for_topics(client, wanted_topic("too-many", 6))
        assert refusal.error_code == ErrorCode.INVALID_PARTITIONS
        assert "may open 5 more" in refusal.error_message
        assert ask_for_topics(client, wanted_topic("rest", 5))[0].error_code == ErrorCode.NONE
    assert broker.end(signal.SIGKILL) == -signal.SIGKILL
    with RawClient(start(prefix=few_files(100)).address) as client:
        assert len(metadata(client, "fits").topics[0].partitions) == 43


@pytest.mark.slow
def test_a_limit_of_open_files_below_the_existing_partitions_is_named(start: Start, tmp_path: Path) -> None:
    broker = start()
    with RawClient(broker.address) as client:
        ask_for_topics(client, wanted_topic("t", 60))
    broker.end()
    done = subprocess.run(
        [*few_files(40), *COMMAND, *in_directory(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 2
    assert "Too many open files" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_one_connection_beyond_the_limit_closes_the_one_that_is_idle_for_longest(start: Start) -> None:
    broker = start(prefix=few_files(80))
    with ExitStack() as stack:
        idle, *clients = [stack.enter_context(RawClient(broker.address)) for _ in range(20)]
        for client in (idle, *clients):
            assert metadata(client).cluster_id
        late = stack.enter_context(RawClient(broker.address))
        assert metadata(late).cluster_id
        assert idle.read_to_end() == b""
        for client in clients:
            assert metadata(client).cluster_id


@pytest.mark.slow
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows(start: Start) -> None:
    broker = start(prefix=("sh", "-c", 'ulimit -Sn 50 && exec "$@"', "sh"))
    with RawClient(broker.address) as client:
        assert ask_for_topics(client, wanted_topic("t", 60))[0].error_code == ErrorCode.NONE
    limits = Path(f"/proc/{broker.process.pid}/limits")
    if os.path.exists(limits):
        (line,) = (line for line in limits.read_text().splitlines() if line.startswith("Max open files"))
        soft, hard = line.split()[3:5]
        assert soft == hard
