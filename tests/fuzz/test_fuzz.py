"""The fuzz targets for a few seconds, or a minute; ``python -m tests.fuzz`` runs them for longer.

A finding is repeated by the call that the message begins with, such as ``fuzz_requests(7)``.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import crc32c
import pytest

from dualwrite.broker import connection
from dualwrite.broker.api.records import fetch
from dualwrite.broker.facts.producer_snapshot import ProducerSnapshot, decode_snapshot
from dualwrite.broker.log import recovery
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.runtime.long_polls import LongPolls
from tests.fuzz.__main__ import main
from tests.fuzz.data_files import fuzz_files
from tests.fuzz.messages import EVERY_API, mutated, random_frame
from tests.fuzz.request_path import fuzz_requests

SEEDS_OF_A_BROKEN_BROKER = 400


def within(seconds: float, first_seed: int, target: Callable[[int], Any]) -> Counter[Any]:
    """Run ``target`` with one seed after the other, at least with one; how often it had each result."""
    print(f"first seed: {first_seed}")
    ends_at, results, seed = time.monotonic() + seconds, Counter[Any](), first_seed
    while not results or time.monotonic() < ends_at:
        results[target(seed)] += 1
        seed += 1
    return results


def test_strangers_harm_no_broker_and_no_client() -> None:
    within(4, 0, fuzz_requests)


@pytest.mark.slow
def test_damaged_files_are_noticed() -> None:
    for number in range(120):
        fuzz_files(number)


@pytest.mark.slow
def test_strangers_harm_no_broker_and_no_client_for_a_minute() -> None:
    within(60, 1_000_000, fuzz_requests)


@pytest.mark.slow
def test_damaged_files_are_noticed_for_a_minute() -> None:
    results = within(60, 1_000_000, fuzz_files)
    kinds = {".log", ".index", ".timeindex", ".txnindex", ".snapshot", "recovery-point", "log-start-offset"}
    kinds |= {"cleaner-offset", ".checksums"}
    assert {str(result).partition(":")[0] for result in results} == kinds


def test_the_command_prints_its_seed_and_what_it_did(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "--seconds", "0.01", "--seed", "3", "--target", "files"])
    assert main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "first seed: 3"
    assert sum(int(line.split()[0]) for line in said[1:]) == 20
    assert logging.root.manager.disable == logging.NOTSET  # the program's logs are as before


# --- the fuzzers themselves


def test_a_seed_repeats_its_frames_and_every_api_is_among_them() -> None:
    frames = [random_frame(random.Random(seed)) for seed in range(3000)]
    assert frames[:50] == [random_frame(random.Random(seed)) for seed in range(50)]
    keys = {int.from_bytes(frame[4:6], "big") for frame in frames if len(frame) > 6}
    assert keys >= {int(key) for key, _ in EVERY_API}


def test_a_mutation_changes_most_frames_and_none_grows_without_limit() -> None:
    changed = [mutated(b"0123456789" * 10, random.Random(seed)) for seed in range(500)]
    assert sum(data != b"0123456789" * 10 for data in changed) > 450
    assert max(map(len, changed)) < 1000


def found_by(target: Callable[[int], Any]) -> str:
    """The first finding."""
    for seed in range(SEEDS_OF_A_BROKEN_BROKER):
        try:
            target(seed)
        except AssertionError as error:
            return str(error)
    return "nothing was found"


def keep_memory(self: ConnectionMemory, *_: Any) -> None:
    return None


def test_memory_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectionMemory, "give_back", keep_memory)
    assert "memory was not given back" in found_by(fuzz_requests)


def test_a_wait_for_a_client_that_has_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongPolls, "wake", lambda _: None)
    assert "connections of clients that have gone are still served" in found_by(fuzz_requests)


def test_an_exception_in_a_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MalformedMessageError", KeyError)
    assert found_by(fuzz_requests).startswith("fuzz_requests(")


@pytest.mark.slow
def test_a_checksum_that_is_not_looked_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(data: bytes) -> list[ProducerSnapshot]:
        version, body = data[:2], data[6:]
        return decode_snapshot(version + crc32c.crc32c(body).to_bytes(4, "big") + body)

    monkeypatch.setattr(recovery, "decode_snapshot", decode)
    assert "appeared after damage to .snapshot" in found_by(fuzz_files)


def test_a_reader_that_loses_its_connection_by_a_damaged_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MalformedBatchError", KeyError)
    assert "the broker closed the connection" in found_by(fuzz_files)
