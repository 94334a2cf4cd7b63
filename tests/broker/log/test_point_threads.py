"""A thread stores a recovery point, and meanwhile the log's owner removes files that the point is about."""

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dualwrite.broker.log.layout import read_recovery_point
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.log_histories import LogHistory
from tests.support.broker.logs import DIRECTORY
from tests.support.waiting import PATIENCE_SECONDS

OVERTAKING_SECONDS = 0.5
"""How long the owner has to overtake the thread that stores the point. An owner that waits never does."""


class OvertakenFiles(MemoryFiles):
    """Lets ``owner`` run when the first file of a recovery point is about to be in place."""

    owner: threading.Thread | None = None

    def rename(self, path: Path, name: str) -> None:
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.start()
            owner.join(OVERTAKING_SECONDS)
        super().rename(path, name)


def gives_the_log_up(log: PartitionLog) -> None:
    log.abandon()


def deletes_records(log: PartitionLog) -> None:
    log.truncate_before(log.end_offset)


def replaces_a_segment(log: PartitionLog) -> None:
    replacement = log.begin_replacement(log.sealed_segments()[:1])
    for header, _ in log.sealed_segments()[0].batches():
        replacement.leave_out(header)
    replacement.finish()
    assert log.replace(replacement)


@pytest.mark.parametrize("act", [gives_the_log_up, deletes_records, replaces_a_segment])
def test_no_file_is_removed_while_a_thread_stores_a_recovery_point(act: Callable[[PartitionLog], None]) -> None:
    """Otherwise the thread finds no directory, which ends the broker, or gives a segment the indexes of the one that
    it has replaced."""
    files = OvertakenFiles()
    history = LogHistory(files, random.Random(1))
    while len(history.log.sealed_segments()) < 2:
        history.write()
    end_offset = history.log.end_offset
    points_seen: list[int] = []

    def act_and_look() -> None:
        act(history.log)
        points_seen.append(read_recovery_point(files, DIRECTORY))

    files.owner = owner = threading.Thread(target=act_and_look)
    history.take_point()
    owner.join(PATIENCE_SECONDS)
    assert points_seen == [end_offset]
