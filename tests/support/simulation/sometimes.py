"""What must happen in some run of the simulation, so that nothing passes for want of events.

Most of it is counted by the world itself: faults that struck, what callers were told. The rest is seen from outside:
the functions of the product through which each recovery and each batch goes are observed while a run lasts. They are
private, as neither tells anyone what it does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from dualwrite.broker.core import transaction_rules
from dualwrite.broker.core.partitions import BatchVerdict, PartitionState
from dualwrite.broker.runtime.compaction import Compaction
from dualwrite.coordinator.recovery.sequence import Recovery
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import ProducerIdentity
from dualwrite.testing import files
from tests.support.simulation.broker.broker_machine import CLEAN_STOP, COMPACTION_CUT
from tests.support.simulation.database.slot_leases import CHANGED_CLUSTER, LEFT_ALONE
from tests.support.simulation.faults import SimulatedFault

if TYPE_CHECKING:
    from tests.support.simulation.world import SimulatedWorld

REQUIRED_FROM = 1000
"""Seeds from which on each of SOMETIMES must have happened."""

RECOVERY_COMMITTED = "a new owner committed"
RECOVERY_ABORTED = "a new owner aborted"
FORGOTTEN = "a forgotten COMMIT is on record"
TWO_CLUSTERS = "two clusters"
OFFSETS = "offsets"
DUPLICATE = "a batch came twice"
TORN = "a power cut tore a file"
COMPACTED = "a compaction"
NEW_PRODUCER_ID = "epochs ran out"
DOUBT_COMMITTED, DOUBT_ABORTED = "in doubt, then in both", "in doubt, then in neither"
KILLED_COMMITTED, KILLED_ABORTED = "killed, then in both", "killed, then in neither"

OUTCOMES: Mapping[str, str] = {
    Result.SUCCEEDED.name: "a unit of work was committed, and its caller was told so",
    Result.ROLLED_BACK.name: "a unit of work was rolled back, and its caller was told so",
    Result.IN_DOUBT.name: "a caller was told that its unit of work is in doubt",
    DOUBT_COMMITTED: "a unit of work in doubt was in both places in the end",
    DOUBT_ABORTED: "a unit of work in doubt was in neither place in the end",
    KILLED_COMMITTED: "the process of a unit of work was killed, and the unit was in both places in the end",
    KILLED_ABORTED: "the process of a unit of work was killed, and the unit was in neither place in the end",
    "never began": "a unit of work got no slot in time, or could not begin",
    RECOVERY_COMMITTED: "the new owner of a slot committed the transaction that its predecessor had left",
    RECOVERY_ABORTED: "the new owner of a slot aborted the transaction that its predecessor had left",
    "LeaseLostError": "a process that had lost its lease was fenced by the state row",
    "FencedError": "a producer was fenced by Kafka",
    "KafkaUnavailableError": "a process gave up waiting for Kafka",
    DUPLICATE: "a batch came twice, and is in the log once",
    TORN: "a power cut left a part of what was not synced in a file",
    CLEAN_STOP: "a broker that was stopped ended by itself, with recovery points for its next start",
    COMPACTED: "the broker compacted a log of its own: facts about transactions, or offsets of consumer groups",
    COMPACTION_CUT: "the broker ended in the middle of such a compaction",
    NEW_PRODUCER_ID: "the epochs of a producer id ran out, and its producer got another one",
    FORGOTTEN: "the database had forgotten a COMMIT, and that is on record",
    OFFSETS: "units of work committed offsets of consumer groups",
    TWO_CLUSTERS: "there was a second Kafka cluster, for the same application and database",
    LEFT_ALONE: "a process saw a slot whose owner had gone and had used the other cluster, and left it alone",
    CHANGED_CLUSTER: "a process took a slot that had been given back in the other cluster",
    "a look in vain": "a reader found nothing new, and looked again",
}
"""name -> what it means."""

_STRUCK = {"BROKER": "the broker", "DATABASE": "the database", "COMMIT": "a COMMIT:"}
"""The first word of a fault's name -> what it strikes; the others strike an application."""
FAULTS: Mapping[str, str] = {
    kind.name: f"{_STRUCK.get(kind.name.partition('_')[0], 'an application')} {kind.value}" for kind in SimulatedFault
}
SOMETIMES: Mapping[str, str] = {**FAULTS, **OUTCOMES}


def missing_in(seen: Mapping[str, int], seeds: int) -> list[str]:
    """What no seed had, if there were enough of them."""
    return [] if seeds < REQUIRED_FROM else [name for name in SOMETIMES if not seen.get(name)]


def table_of(seen: Mapping[str, int], seeds: int) -> str:
    """The table of docs/reference/simulation.md."""
    lines = [f"| what happened | its name | seeds of {seeds:,} |", "|---|---|---:|"]
    lines += [f"| {meaning} | `{name}` | {seen.get(name, 0):,} |" for name, meaning in SOMETIMES.items()]
    return "\n".join(lines) + "\n"


@contextmanager
def observed(seen: Counter[str]) -> Iterator[None]:
    """Count in ``seen`` what the run in the ``with`` block does that its world cannot see."""
    recovered: set[tuple[str, int]] = set()
    complete, decide, cut = Recovery._complete, PartitionState.decide, files._Content.after_power_cut
    swap_in, bumped = Compaction._swap_in, transaction_rules._bumped

    def completes(self: Any, lease: Lease, state: Any) -> None:
        complete(self, lease, state)
        is_first = (lease.transactional_id, lease.fencing_token) not in recovered
        recovered.add((lease.transactional_id, lease.fencing_token))
        outcome = self.outcomes.get(lease)
        if is_first and outcome in (Outcome.COMMITTED, Outcome.ABORTED):
            seen[RECOVERY_COMMITTED if outcome is Outcome.COMMITTED else RECOVERY_ABORTED] += 1

    def decides(self: Any, *arguments: Any, **options: Any) -> BatchVerdict:
        verdict = decide(self, *arguments, **options)
        seen[DUPLICATE] += verdict.duplicate_of >= 0
        return verdict

    def cuts(self: Any, rng: Any) -> Any:
        after = cut(self, rng)
        seen[TORN] += self.synced < len(after.data) < len(self.data)
        return after

    def swaps_in(self: Any, *arguments: Any) -> bool:
        is_done = swap_in(self, *arguments)
        seen[COMPACTED] += is_done
        return is_done

    def bumps(client: ProducerIdentity, moment: Any) -> ProducerIdentity:
        after = bumped(client, moment)
        seen[NEW_PRODUCER_ID] += after.producer_id != client.producer_id
        return after

    with (
        patch.object(Recovery, "_complete", completes),
        patch.object(PartitionState, "decide", decides),
        patch.object(files._Content, "after_power_cut", cuts),
        patch.object(Compaction, "_swap_in", swaps_in),
        patch.object(transaction_rules, "_bumped", bumps),
    ):
        yield
    for name in [name for name, times in seen.items() if not times]:
        del seen[name]


def note_ends(world: "SimulatedWorld") -> None:
    """Count how the units of work ended whose callers were told nothing, or that they are in doubt."""
    if len(world.clusters) > 1:
        world.happened(TWO_CLUSTERS)
    if any(cluster.offsets for cluster in world.clusters):
        world.happened(OFFSETS)
    slots = dict(world.database.outcomes)
    if any(lease.transactional_id in slots for lease in world.database.forgotten.values()):
        world.happened(FORGOTTEN)
    rows = set(world.database.units)
    for attempt, answer in world.answers.items():
        if answer == Result.IN_DOUBT.name:
            world.happened(DOUBT_COMMITTED if attempt in rows else DOUBT_ABORTED)
        elif answer == "killed":
            world.happened(KILLED_COMMITTED if attempt in rows else KILLED_ABORTED)
