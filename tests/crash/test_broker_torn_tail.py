"""What a crash can leave at the end of a file is cut when the broker starts again; what was acknowledged never is."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualwrite.broker.settings.topic_settings import SMALLEST_SEGMENT_BYTES
from dualwrite.errors import ConfigurationError
from dualwrite.ids import ProducerIdentity
from dualwrite.records.header import iterate_batches, place_batch
from dualwrite.wire.error_codes import ErrorCode
from tests.support.crash.broker_history import WrittenFate, WrittenUnit, anomalies, committed, read_log
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    batch,
    end,
    identity,
    init,
    new_producer,
    new_topic,
    ongoing,
    open_transaction,
    produce,
    read_all,
)
from tests.support.requests.raw_client import RawClient

pytestmark = pytest.mark.crash

JOURNALS = ("__cluster_metadata-0", "__transaction_state-0")


class KilledBroker:
    """A broker with records, an ended and a prepared transaction, and a producer that goes on; killed."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.broker = ForkedBroker(data_dir).start()
        with RawClient(self.broker.bootstrap_servers) as client:
            self.topic = new_topic(client, partitions=2)
            ended = new_producer(client, "ended")
            open_transaction(client, "ended", ended, {(self.topic, 0): [b"ended"], (self.topic, 1): [b"ended"]})
            self.next_of_ended = identity(end(client, "ended", ended))
            self.producer = new_producer(client)
            self.offsets = [self.write(client, sequence) for sequence in range(6)]
            self.prepared = new_producer(client, "prepared", two_phase=True)
            open_transaction(client, "prepared", self.prepared, {(self.topic, 1): [b"prepared"]})
        self.broker.kill()

    def write(self, client: RawClient, sequence: int) -> int:
        """Write the idempotent producer's batch number ``sequence``; its offset."""
        answer = produce(client, self.topic, batch([b"%d" % sequence], self.producer, sequence))
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        return int(answer.base_offset)

    def log(self, name: str) -> Path:
        """The last segment of a partition or a journal."""
        return max((self.data_dir / name).glob("*.log"))

    def logs(self) -> list[Path]:
        return [self.log(name) for name in (*JOURNALS, f"{self.topic}-0", f"{self.topic}-1")]

    def found(self) -> str:
        """What the oracle finds after a restart."""
        ended = WrittenUnit(
            "ended", {0: [b"ended"], 1: [b"ended"]}, WrittenFate.COMMITTED, {(0, b"ended"): 0, (1, b"ended"): 0}
        )
        units = [ended, WrittenUnit("prepared", {1: [b"prepared"]}, WrittenFate.OPEN, {(1, b"prepared"): 2})]
        for sequence, offset in enumerate(self.offsets):
            value = b"%d" % sequence
            units.append(WrittenUnit("plain", {0: [value]}, WrittenFate.COMMITTED, {(0, value): offset}))
        with RawClient(self.broker.start().bootstrap_servers) as client:
            return "\n".join(anomalies(units, read_log(client, self.topic, 2), committed(client, self.topic, 2)))

    def goes_on(self) -> None:
        """Everything acknowledged is there and known, and everybody goes on where they were."""
        assert self.found() == ""
        with RawClient(self.broker.bootstrap_servers) as client:
            assert self.write(client, 5) == self.offsets[5], "a duplicate is still known"
            assert self.write(client, 6) == self.offsets[5] + 1
            open_transaction(client, "ended", self.next_of_ended, {(self.topic, 0): [b"more"]})
            assert end(client, "ended", self.next_of_ended).error_code == ErrorCode.NONE
            answer = init(client, "prepared", two_phase=True, keep=True)
            assert ongoing(answer) == self.prepared
            assert end(client, "prepared", identity(answer)).error_code == ErrorCode.NONE
            assert read_all(client, self.topic, 1) == [b"ended", b"prepared"]
            assert read_all(client, self.topic)[-1] == b"more"


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledBroker]:
    made = KilledBroker(tmp_path / "broker")
    yield made
    made.broker.stop()


def half_a_batch(log: Path) -> bytes:
    """The beginning of the batch that would have come next."""
    whole = batch_after(log)
    return whole[: len(whole) // 2]


def a_batch_with_one_wrong_bit(log: Path) -> bytes:
    whole = bytearray(batch_after(log))
    whole[-1] ^= 1
    return bytes(whole)


def a_header_alone(log: Path) -> bytes:
    return batch_after(log)[:61]


def noise(log: Path) -> bytes:
    return random.Random(7).randbytes(3000)


def zeros(log: Path) -> bytes:
    return bytes(4096)  # a file system that had grown the file and not written it


def one_byte(log: Path) -> bytes:
    return b"\x00"


def batch_after(log: Path) -> bytes:
    """A sound batch with the offset that follows the last of ``log``."""
    headers = [header for header, _ in iterate_batches(log.read_bytes())]
    whole = bytearray(batch([b"never acknowledged"], ProducerIdentity(999_999, 0), 0))
    place_batch(whole, headers[-1].next_offset if headers else 0, leader_epoch=0)
    return bytes(whole)


Tail = Callable[[Path], bytes]


def test_nothing_is_lost_by_a_kill_alone(killed: KilledBroker) -> None:
    killed.goes_on()


_RARE = [pytest.param(tear, marks=pytest.mark.slow) for tear in (a_header_alone, zeros, one_byte)]


@pytest.mark.parametrize("tail", [half_a_batch, a_batch_with_one_wrong_bit, noise, *_RARE])
def test_a_torn_tail_in_every_file_is_cut(killed: KilledBroker, tail: Tail) -> None:
    for log in killed.logs():
        with log.open("ab") as file:
            file.write(tail(log))
    killed.goes_on()


@pytest.mark.slow
@pytest.mark.parametrize("which", range(4))
def test_a_torn_tail_in_one_file_is_cut(killed: KilledBroker, which: int) -> None:
    log = killed.logs()[which]
    sound = log.read_bytes()
    with log.open("ab") as file:
        file.write(half_a_batch(log))
    killed.goes_on()
    assert log.read_bytes()[: len(sound)] == sound


def test_missing_partition_directories_are_recreated_only_by_an_operator(killed: KilledBroker) -> None:
    """No kill leaves that: directories are made before the journal knows of their topic."""
    with RawClient(killed.broker.start().bootstrap_servers) as client:
        young = new_topic(client, partitions=3)
    killed.broker.kill()
    directories = [killed.data_dir / f"{young}-{index}" for index in (1, 2)]
    for directory in directories:
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
    for directory in directories:
        with pytest.raises(ConfigurationError, match=f"{directory} is missing"):
            killed.broker.start()
        directory.mkdir()
    with RawClient(killed.broker.start().bootstrap_servers) as client:
        assert produce(client, young, batch([b"v"]), partition=2).base_offset == 0
    killed.broker.kill()
    killed.goes_on()


def last_batch(log: Path) -> int:
    """Size of the last batch of ``log``."""
    return [header.size for header, _ in iterate_batches(log.read_bytes())][-1]


@pytest.mark.parametrize("cut", ["a byte", "a batch"])
def test_the_oracle_notices_acknowledged_records_that_are_gone(killed: KilledBroker, cut: str) -> None:
    """The negative control: a disk that loses what was synced is no torn tail."""
    log = killed.log(f"{killed.topic}-0")
    content = log.read_bytes()
    log.write_bytes(content[: -1 if cut == "a byte" else -last_batch(log)])
    assert killed.found().startswith("lost write: (0, b'5')")


def test_the_broker_serves_what_is_left_of_a_partition_that_was_cut(killed: KilledBroker) -> None:
    log = killed.log(f"{killed.topic}-0")
    for _ in range(3):
        log.write_bytes(log.read_bytes()[:-1])
        killed.broker.start()
        killed.broker.kill()
    with RawClient(killed.broker.start().bootstrap_servers) as client:
        assert read_all(client, killed.topic) == [b"ended", b"0", b"1", b"2"]
        assert killed.write(client, 3) == killed.offsets[3], "the sequence is that of what is left"


def test_damage_before_the_last_segment_is_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    config = {"log.segment.bytes": str(SMALLEST_SEGMENT_BYTES)}
    with ForkedBroker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        for number in range(8):
            produce(client, topic, batch([b"%d" % number * 600_000]))
    first, *others = sorted((tmp_path / f"{topic}-0").glob("*.log"))
    assert len(others) > 2
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(ConfigurationError, match=str(first)):
        ForkedBroker(tmp_path, config=config).start()
