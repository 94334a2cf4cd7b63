"""A read_committed consumer: it reads the topic's partitions through the network, during the run and after it."""

from typing import TYPE_CHECKING

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.encoding.record_states import stable_records
from dualwrite.client.terms.record_states import RecordState
from dualwrite.errors import DualWriteError
from dualwrite.ids import TopicPartition
from tests.support.broker.simulated import TOPIC
from tests.support.simulation.application import CONFIG, SimulatedApplication
from tests.support.simulation.broker.broker_machine import PARTITIONS

if TYPE_CHECKING:
    from tests.support.simulation.world import SimulatedWorld

LOOKS = 2
_PAUSE = 3.0
"""The longest time in seconds between two looks."""
_MOST_BYTES = 1 << 20
_TRIES = 20


class SimulatedReader:
    """The consumer, in a process of its own.

    :param process: a process of the application, for its control plane and for its cluster.
    """

    def __init__(self, world: "SimulatedWorld", process: SimulatedApplication) -> None:
        self._world = world
        self._cluster = process.cluster
        self._process = process.process
        self._control: ControlPlane = process.control(CONFIG)

    def watch(self) -> None:
        """Look at the topic now and then: every record must be decided, and must stay."""
        for _ in range(LOOKS):
            self._process.sleep(self._process.chance() * _PAUSE)
            partition = int(self._process.chance() * PARTITIONS)
            try:
                values = self._read(partition)
            except DualWriteError:
                self._world.happened("a look in vain")
            else:
                self._note(partition, values)
        self._control.close()

    def read_all(self) -> None:
        """Read everything, for the end."""
        for partition in range(PARTITIONS):
            for _ in range(_TRIES):
                try:
                    self._cluster.records[partition] = self._read(partition)
                    break
                except DualWriteError:
                    self._process.sleep(1.0)
        self._cluster.read_offsets({attempt.partition(".")[0] for attempt in self._world.answers})
        self._control.close()

    def _note(self, partition: int, values: list[str]) -> None:
        world = self._world
        rows = set(world.database.units)
        for value in values:
            if value.partition("/")[0] not in rows | world.database.forgotten.keys():
                world.broken.append(f"dirty read: a reader gets {value}, which the database has not committed")
        shown = self._cluster.shown
        shown[partition] = max(shown.get(partition, []), values, key=len)

    def _read(self, partition: int) -> list[str]:
        """The values of ``partition`` from its beginning."""
        place = TopicPartition(TOPIC, partition)
        piece = self._control.logs().read(place, 0, committed=True, most=_MOST_BYTES)
        assert piece is not None, "the log begins at 0"
        self._cluster.read_bytes[partition] = piece.records
        self._cluster.ends[partition] = piece.last_stable_offset, piece.high_watermark
        return [
            (stated.record.value or b"").decode()
            for stated in stable_records(piece, 0)
            if stated.state in (RecordState.COMMITTED, RecordState.PLAIN)
        ]
