"""A disk that takes no more bytes from a running broker: it ends with one line, and lost nothing that it acknowledged.

The limit of the size of files (RLIMIT_FSIZE) stands for the disk: a write beyond it fails, also in its middle.
"""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualwrite.broker.process.disk import DiskFile, DiskFiles
from dualwrite.broker.process.ending import STOP_EXIT_CODE
from dualwrite.records.header import MalformedBatchError
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.in_process import InProcessBroker, list_request
from tests.support.broker.simulated import TOPIC, Rooms, append, run
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    batch,
    end,
    fetch_request,
    identity,
    init,
    new_producer,
    new_topic,
    ongoing,
    only_partition,
    open_transaction,
    produce,
    read_all,
)
from tests.support.requests.offset_calls import commit
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit of Linux")

PREPARED = "prepared"


class LimitedBroker:
    """A broker that has acknowledged records and a prepared transaction, and whose disk can become full."""

    def __init__(self, data_dir: Path, durability: str) -> None:
        self.data_dir = data_dir
        ready = data_dir.with_name("ready")
        command = [sys.executable, "-m", "dualwrite", "broker", "--data-dir", str(data_dir), "--durability", durability]
        command += ["--listen", "127.0.0.1:0", "--ready-file", str(ready)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert eventually(ready.exists, bool)
        self.client = RawClient(ready.read_text().splitlines()[0])
        self.topic = new_topic(self.client)
        self.values = [b"%d" % number for number in range(10)]
        for value in self.values:
            assert produce(self.client, self.topic, batch([value])).error_code == ErrorCode.NONE
        self.producer = new_producer(self.client, PREPARED, two_phase=True)
        open_transaction(self.client, PREPARED, self.producer, {(self.topic, 0): [b"prepared"]})

    def fill_disk(self, most_bytes: int = 0) -> None:
        """No file can grow beyond ``most_bytes`` from now on."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))

    def last_line(self) -> str:
        """What the broker says before it ends."""
        _, log = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert self.process.returncode == STOP_EXIT_CODE, log
        assert "Traceback" not in log
        critical = [line for line in log.splitlines() if "CRITICAL" in line]
        assert critical == log.splitlines()[-1:]
        return critical[0]

    def has_lost_nothing(self, *in_doubt: bytes) -> None:
        """With space again, all is there, and the prepared transaction can be committed.

        :param in_doubt: a value that was sent and not acknowledged.
        """
        with ForkedBroker(self.data_dir) as broker, RawClient(broker.bootstrap_servers) as client:
            assert read_all(client, self.topic) == self.values
            everything = read_all(client, self.topic, committed=False)
            assert everything in ([*self.values, b"prepared"], [*self.values, b"prepared", *in_doubt])
            answer = init(client, PREPARED, two_phase=True, keep=True)
            assert ongoing(answer) == self.producer
            assert end(client, PREPARED, identity(answer)).error_code == ErrorCode.NONE
            assert read_all(client, self.topic) == everything
            assert produce(client, self.topic, batch([b"more"])).error_code == ErrorCode.NONE


@pytest.fixture(params=["fsync", "os"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LimitedBroker]:
    made = LimitedBroker(tmp_path / "data", request.param)
    yield made
    made.client.close()
    made.process.kill()
    made.process.communicate()


def fails(work: Callable[[], object]) -> None:
    """No answer arrives: the broker has ended."""
    with pytest.raises(ConnectionError):
        work()


WORK: dict[str, tuple[Callable[[LimitedBroker], object], str]] = {
    "a record": (lambda broker: produce(broker.client, broker.topic, batch([b"lost"])), f"{0:020}.log"),
    "the begin of a transaction": (
        lambda broker: open_transaction(
            broker.client, "late", new_producer(broker.client, "late"), {(broker.topic, 0): [b"lost"]}
        ),
        "__transaction_state-0",
    ),
    "the end of a transaction": (lambda broker: end(broker.client, PREPARED, broker.producer), "__transaction_state-0"),
    "an offset": (lambda broker: commit(broker.client, "g", {(broker.topic, 0): 5}), "__consumer_offsets-0"),
    "a topic": (lambda broker: new_topic(broker.client), "log"),
}


@pytest.mark.slow_cases
@pytest.mark.slow_cases("os")
@pytest.mark.parametrize(("work", "file"), WORK.values(), ids=WORK.keys())
def test_a_full_disk_ends_the_broker_with_one_line_and_loses_nothing(
    broker: LimitedBroker, work: Callable[[LimitedBroker], object], file: str
) -> None:
    broker.fill_disk()
    fails(lambda: work(broker))
    line = broker.last_line()
    assert "the broker stops: [Errno 27] File too large: '" in line
    assert file in line
    assert "check the disk (free space, permissions, errors) and start it again" in line
    broker.has_lost_nothing(b"lost")


@pytest.mark.slow_cases("os")
def test_a_write_that_fails_in_its_middle_is_cut_by_the_next_start(broker: LimitedBroker) -> None:
    log = broker.data_dir / f"{broker.topic}-0" / f"{0:020}.log"
    broker.fill_disk(log.stat().st_size + 40)
    fails(lambda: produce(broker.client, broker.topic, batch([b"x" * 1000])))
    assert str(log) in broker.last_line()
    broker.has_lost_nothing()


@pytest.mark.slow_cases("os")
def test_a_stop_that_cannot_write_its_recovery_points_fails_and_loses_nothing(broker: LimitedBroker) -> None:
    broker.fill_disk()
    broker.process.send_signal(signal.SIGTERM)
    assert "File too large: '" in broker.last_line()
    broker.has_lost_nothing()


@pytest.mark.slow
def test_a_start_on_a_full_disk_fails_with_one_line_and_a_later_start_finds_everything(tmp_path: Path) -> None:
    first = LimitedBroker(tmp_path / "data", "fsync")
    first.client.close()
    first.process.kill()
    first.process.communicate()
    log = tmp_path / "data" / f"{first.topic}-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes() + b"\x00" * 7)  # what a start cuts, and writes indexes for
    program = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY));"
        "sys.argv[0] = 'dualwrite'; runpy.run_module('dualwrite', run_name='__main__', alter_sys=True)"
    )
    arguments = ["broker", "--data-dir", str(tmp_path / "new"), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == f"dualwrite: data directory {tmp_path / 'new'}: File too large"
    first.has_lost_nothing()


@pytest.mark.slow_cases
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_start_that_meets_a_failing_disk_may_be_repeated(tmp_path: Path, number: int) -> None:
    """After the code 2 a supervisor gives up; the disk may have room again a moment later."""
    first = LimitedBroker(tmp_path / "data", "fsync")
    first.client.close()
    first.process.kill()
    first.process.communicate()
    log = tmp_path / "data" / f"{first.topic}-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes() + b"\x00" * 7)  # what a start cuts
    program = (
        f"import os, runpy, sys\ndef fail(*_): raise OSError({number}, os.strerror({number}))\nos.ftruncate = fail\n"
        "sys.argv[0] = 'dualwrite'; runpy.run_module('dualwrite', run_name='__main__', alter_sys=True)"
    )
    arguments = ["broker", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    line = done.stderr.splitlines()[-1]
    if number == errno.EACCES:
        assert (done.returncode, line) == (2, f"dualwrite: cannot open {log}: Permission denied")
    else:
        assert done.returncode == STOP_EXIT_CODE
        assert f"CRITICAL dualwrite.broker.process.ending: the broker stops: [Errno {number}] " in line
        assert str(log) in line
    assert "Traceback" not in done.stderr
    first.has_lost_nothing()


def test_a_disk_that_cannot_be_read_is_named_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(5, os.strerror(5))

    file = DiskFile(tmp_path / "log")
    for name, work in (("pread", lambda: file.read(0, 1)), ("ftruncate", lambda: file.truncate(0))):
        monkeypatch.setattr(os, name, fail)
        with pytest.raises(OSError, match=f"Input/output error: '{tmp_path / 'log'}'"):
            work()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}'"):
        DiskFiles().sync_directory(tmp_path)
    file.close()


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (OSError(5, os.strerror(5), "the log"), ErrorCode.KAFKA_STORAGE_ERROR),
        (MalformedBatchError("record batch of magic 7"), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_a_partition_that_cannot_be_read_has_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception, error: ErrorCode
) -> None:
    """Other partitions are read, and the client's connection stays."""

    def fail(*_: object) -> bytes:
        raise failure

    async def main() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        for index in range(2):
            append(broker.rooms.partition(index), b"v")
        await broker.rooms.flusher.barrier()
        broken = broker.rooms.partition(0)
        monkeypatch.setattr(broken.log, "read", fail)
        monkeypatch.setattr(broken.log, "offset_for_timestamp", fail)
        client = broker.connect("127.0.0.1")
        answers = [only_partition(await client.ask(fetch_request(TOPIC, partition=index), 12)) for index in range(2)]
        assert [answer.error_code for answer in answers] == [error, ErrorCode.NONE]
        assert answers[1].records
        (topic,) = (await client.ask(list_request(0, 1), 5)).topics
        assert [partition.error_code for partition in topic.partitions] == [error]
        await broker.close()

    run(main())
    assert len(caplog.records) == 2
    assert all(str(failure) in record.getMessage() for record in caplog.records)
