"""What one topic or one transaction costs does not grow with the number of the others: counts of operations."""

import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.settings.broker_settings import MAX_PARTITIONS
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import DATA_DIR, Rooms, StoppableFiles, never, run


class ListCountingFiles(StoppableFiles):
    """Counts how often the data directory is listed, which takes as long as it has names."""

    def __init__(self) -> None:
        super().__init__(MemoryFiles(), random.Random(1))
        self.listed = 0

    def list(self, directory: Path) -> list[str]:
        self.listed += directory == DATA_DIR
        return super().list(directory)


def rooms_on(files: ListCountingFiles) -> Rooms:
    return Rooms(files, Flusher(durable=False, on_failure=never))


def in_loop(act: Any) -> Any:
    """``act`` in the broker's event loop."""

    async def main() -> Any:
        return await act()

    return run(main())


@pytest.mark.parametrize("deleted", [1, 20])
def test_a_start_looks_at_the_data_directory_as_often_however_many_topics_were_deleted(deleted: int) -> None:
    files = ListCountingFiles()

    async def create_and_delete() -> int:
        rooms = rooms_on(files)
        for number in range(deleted):
            assert rooms.cluster.create_topic(CreateTopic(f"topic-{number}", 1)).fact is not None
        listed = files.listed
        for number in range(deleted):
            await rooms.cluster.delete_topic(f"topic-{number}")
        return files.listed - listed

    assert in_loop(create_and_delete) == 0, "a deletion looks at its own directories alone"
    files.listed = 0

    async def start() -> None:
        rooms_on(files)

    in_loop(start)
    assert files.listed == 2  # what is left of deleted topics; whether the others are all there


def test_the_room_for_partitions_is_kept_through_creation_extension_and_deletion() -> None:
    async def history() -> list[int]:
        cluster = rooms_on(ListCountingFiles()).cluster
        room = [cluster.room]
        assert cluster.create_topic(CreateTopic("t", 3)).error is ErrorCode.NONE
        room.append(cluster.room)
        assert cluster.add_partitions("t", 5, None, validate_only=True).error is ErrorCode.NONE
        assert cluster.add_partitions("t", 5, None, validate_only=False).error is ErrorCode.NONE
        room.append(cluster.room)
        await cluster.delete_topic("t")
        return [*room, cluster.room, MAX_PARTITIONS - _open(cluster)]

    first, *rest = in_loop(history)
    assert rest == [first - 3, first - 5, first, first]


def _open(cluster: Cluster) -> int:
    return len(list(cluster.partitions()))


def test_the_oldest_open_transaction_is_found_without_a_search() -> None:
    """In a dict, the search for the first entry passes all that were removed before it."""
    state = PartitionState()
    assert type(state.open_transactions) is OrderedDict
    state.restore(0, [], [])
    assert type(state.open_transactions) is OrderedDict
