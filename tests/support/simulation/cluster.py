"""A Kafka cluster of the simulation: its broker's machine, its network, and what its readers have got.

A run has one, or two for one application on one database. Then some processes use the first and others the second.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from dualwrite.broker.facts.transactions import TransactionStatus
from tests.support.simulation.broker.broker_machine import PARTITIONS, BrokerMachine
from tests.support.simulation.network import SimulatedNetwork

if TYPE_CHECKING:
    from tests.support.simulation.world import SimulatedWorld


class ClusterOfRun:
    """The cluster.

    :param lane: the name of its broker.
    :param last: the name of the process that recovers what is left in it, and of its readers.
    :param is_alone: True if the run has no other cluster.
    """

    def __init__(self, world: "SimulatedWorld", lane: str, last: str, *, is_alone: bool) -> None:
        self.lane = lane
        self.last = last
        self.is_alone = is_alone
        self.records: dict[int, list[str]] = {}
        """What a reader has read in the end, by partition."""
        self.offsets: list[str] = []
        """The offsets that are committed in the end, as records of the attempts that have committed them."""
        self.pending_groups: list[str] = []
        """The groups with an offset of an open transaction in the end."""
        self.shown: dict[int, list[str]] = {}
        """The most that readers have read during the run."""
        self.read_bytes: dict[int, bytes] = {}
        """The answer that they got last."""
        self.ends: dict[int, tuple[int, int]] = {}
        """The last stable offset and the high watermark in that answer."""
        self.machine = BrokerMachine(
            world.scheduler, world.plan, world.new_process, world.strike, world.note, world.broken.append,
            self._broker_died, world.happened, lane, world.conditions.segment_bytes,
        )  # fmt: skip
        self.network = SimulatedNetwork(self.machine, world.message_fault, world.note)

    def _broker_died(self) -> None:
        self.network.broker_died()

    def is_recovered(self) -> bool:
        """True if no transaction is open or ending in it."""
        return self.machine.is_listening and all(
            entry.status is not TransactionStatus.ONGOING and not entry.is_ended
            for entry in self.machine.rooms.coordinator.table.entries.values()
        )

    def read_offsets(self, groups: Iterable[str]) -> None:
        """Read what ``groups`` have committed. The offset of a unit's group is the number of the attempt, from 1 on."""
        offsets = self.machine.rooms.offsets
        for group in sorted(groups):
            committed = offsets.table.groups.get(group, {}).values()
            self.offsets += [f"{group}.{entry.offset - 1}/offset" for entry in committed]
            if offsets.pending(group):
                self.pending_groups.append(group)

    @property
    def is_read(self) -> bool:
        """True if a reader has read every partition."""
        return len(self.records) == PARTITIONS

    def values(self) -> list[str]:
        """What a reader has read, in the order of the partitions, and the committed offsets."""
        return [value for partition in sorted(self.records) for value in self.records[partition]] + self.offsets

    def withdrawn(self) -> list[str]:
        """What readers have got during the run and not in the end."""
        return [
            value
            for partition, values in sorted(self.shown.items())
            for value in values
            if value not in self.records.get(partition, ())
        ]

    def unstable(self) -> list[str]:
        """The partitions and the groups in which a transaction is open."""
        where = "" if self.is_alone else f" of {self.lane}"
        partitions = [number for number, (stable, end) in sorted(self.ends.items()) if stable < end]
        return [f"partition {number}{where}" for number in partitions] + [
            f"offsets of {group}{where}" for group in self.pending_groups
        ]


def of_all(clusters: Sequence[ClusterOfRun], part: Callable[[ClusterOfRun], Sequence[str]]) -> list[str]:
    """``part`` of each cluster, as one list."""
    return [value for cluster in clusters for value in part(cluster)]
