"""Consumers' positions: which offsets a consumer's next unit of work may commit as read, and which it must not.

A consumer's own position is not reliable. After a failed unit of work it has passed the records that were not used, and
the next unit would commit them as read; after a rebalance it may be behind the offset that another member has
committed. So this module remembers for each consumer where it was positioned, the highest offsets that units of work
have claimed so far, and whether a unit has failed since.
"""

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dualwrite.errors import InvalidTransactionStateError, RebalancedError
from dualwrite.ids import TopicPartition

MOST_CONSUMERS = 1000
"""The most consumers remembered per process; the least recently used are forgotten, and must seek."""


class Move(NamedTuple):
    """One partition's offset, as a unit of work advances it."""

    partition: TopicPartition
    stored: int
    """The offset that the database must still have."""
    offset: int
    """Of the next record to be read."""


class Consumer(NamedTuple):
    """The identity of a consumer of this process."""

    identity: int
    """Of the object. Another one may have it later, but is hardly ever the same member, too."""
    member: str | None
    """Its member id, which it loses when it is removed from its group; None without a group."""
    is_static: bool = False
    """True if it has a group.instance.id."""
    generation: int = -1
    """Of the group, as the member knows it; negative without a group."""


@dataclass
class _Progress:
    """The progress of one consumer."""

    member: str | None
    worker: "weakref.ref[object] | None" = None
    """The worker that claimed or positioned it last; None for a callback, which may be called anywhere."""
    is_stored: bool = False
    """True if its position is from the database, and not from Kafka."""
    cluster_id: str | None = None
    """The cluster that it reads from, if its position is from the database and the cluster was asked for its id."""
    row_clusters: dict[TopicPartition, str] = field(default_factory=dict)
    """The cluster whose records each stored offset counts, where one is on record."""
    generation: int = -1
    """The group's when it was positioned last."""
    done: dict[TopicPartition, int] = field(default_factory=dict)
    """Where it was positioned, advanced by its committed units of work since."""
    claimed: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets that units of work have claimed as read, committed or not."""
    in_doubt: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets of units of work whose outcome was not known at their end: recovery may commit them."""
    has_failed: bool = False
    failed_workers: "weakref.WeakSet[object]" = field(default_factory=weakref.WeakSet)
    """The workers of which a unit of work has failed since it was positioned."""

    def failed(self, worker: object) -> None:
        """Note that a unit of work of ``worker`` has failed."""
        self.failed_workers.add(worker)
        self.has_failed = self.has_failed or (self.worker is not None and self.worker() is worker)

    def may_be_behind(self, worker: object) -> bool:
        """True if, before a unit of ``worker``, records may have been read and not used."""
        is_known = self.worker is not None and self.worker() is not None
        return self.has_failed or (not is_known and worker in self.failed_workers)

    def put_right(self) -> None:
        """Note that all records read so far are used, or will be read again."""
        self.has_failed = False
        self.failed_workers.clear()


class Positions:
    """The consumers of one process, and the workers that run their units of work: threads, or tasks of an event loop.
    Holds no strong reference to a worker.
    """

    def __init__(self) -> None:
        self._consumers: OrderedDict[int, _Progress] = OrderedDict()
        self._failed_workers: weakref.WeakSet[object] = weakref.WeakSet()

    def sought(
        self,
        consumer: Consumer,
        starts: Mapping[TopicPartition, int],
        worker: object | None,
        *,
        is_whole: bool = True,
        is_stored: bool = True,
        cluster_id: str | None = None,
        row_clusters: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        """Note that ``consumer`` continues from ``starts``.

        :param worker: runs its units of work; None if not known.
        :param is_stored: these are the offsets in the database, and not Kafka's.
        :param is_whole: these are all of its partitions, so that earlier reads no longer count.
        :param cluster_id: of the cluster that it reads from, if ``is_stored``; None if the cluster was not asked, or
            has no id. It counts only with ``starts``.
        :param row_clusters: the cluster whose records each of ``starts`` counts, where one is on record.
        """
        progress = self._of(consumer, worker)
        if is_whole:
            progress.done, progress.claimed, progress.row_clusters = {}, {}, {}
            progress.worker = None if worker is None else weakref.ref(worker)
            progress.put_right()
        progress.is_stored, progress.generation = is_stored, consumer.generation
        if starts:  # a cooperative group's assignment may be empty, which says nothing of the cluster
            progress.cluster_id = cluster_id
        progress.row_clusters.update(row_clusters or {})
        progress.done.update(starts)
        progress.claimed.update(starts)

    def commits_past_units(self, consumer: Consumer, committed: Mapping[TopicPartition, int]) -> str:
        """The warning that others than ``consumer``'s units of work have moved the offsets ``committed`` of the group
        since it was positioned; empty if that is not seen. It is no proof of a fault: a member that was paused does not
        know yet that another one has its partitions.
        """
        progress = self._known(consumer)
        if progress is None or consumer.generation < 0 or consumer.generation != progress.generation:
            return ""
        for partition, offset in committed.items():
            own = progress.done.get(partition)
            if own is not None and offset > max(own, progress.in_doubt.get(partition, own)):
                return (
                    f"{partition}: the group's committed offset is {offset}, and this consumer's units of work have "
                    f"committed {own}: the records in between count as used. Has another member used them, while this "
                    "one was paused? Otherwise set enable.auto.commit=false, and look for a commit() of your own, or "
                    "another program with the same group.id"
                )
        return ""

    def forget(self, identity: int) -> None:
        """Forget a consumer's position: it can store no offsets before it is positioned again."""
        self._consumers.pop(identity, None)

    def cluster_of(self, consumer: Consumer) -> str | None:
        """The cluster that ``consumer`` reads from; None if that is not known."""
        known = self._known(consumer)
        return None if known is None else known.cluster_id

    def reads_from(self, consumer: Consumer, cluster_id: str | None) -> Mapping[TopicPartition, str]:
        """Note that ``consumer`` reads from this cluster. Return those of its stored offsets that count the records of
        another one, each with that cluster's id."""
        known = self._known(consumer)
        if known is None:
            return {}
        known.cluster_id = cluster_id
        return {place: other for place, other in known.row_clusters.items() if other != cluster_id}

    def done(self, consumer: Consumer) -> Mapping[TopicPartition, int]:
        """Where ``consumer`` was positioned, advanced by its committed units of work since."""
        known = self._known(consumer)
        return {} if known is None else known.done

    def claim(self, consumer: Consumer, offsets: Mapping[TopicPartition, int], worker: object, remedy: str) -> None:
        """Note that a unit of work is about to commit ``offsets`` as read.

        :param remedy: the method that positions the consumer again, for the message.
        :raises RebalancedError: if a static member has another membership than when it was last seen. A static member
            can rejoin without notice to its application; a dynamic one cannot (KIP-394).
        :raises InvalidTransactionStateError: if records may have been skipped: a unit of work has failed since the
            consumer was last positioned, and ``offsets`` are beyond those of the units before.
        """
        last, known = self._consumers.get(consumer.identity), self._known(consumer)
        if last is not None and known is None and consumer.is_static:
            raise _of_another_membership(remedy)
        claimed = {} if known is None else known.claimed
        # It is unknown whether a failure came before or after a change of membership.
        may_be_behind = worker in self._failed_workers if last is None else last.may_be_behind(worker)
        if may_be_behind and any(offset > claimed.get(partition, -1) for partition, offset in offsets.items()):
            raise InvalidTransactionStateError(
                "a unit of work has failed since this consumer was last positioned, and these offsets are beyond those "
                f"of the units before, so records that were not used would count as used: call {remedy}(consumer) "
                "after every failure, and poll again"
            )
        progress = self._of(consumer, worker)
        for partition, offset in offsets.items():
            progress.claimed[partition] = max(offset, progress.claimed.get(partition, -1))

    def moves(
        self, consumer: Consumer, offsets: Mapping[TopicPartition, int], within: Mapping[TopicPartition, int]
    ) -> list[Move]:
        """Those of ``offsets`` that are new, as moves for the database.

        :param within: the moves that the same unit of work has stored already.
        :raises RebalancedError: if the consumer's membership has changed since it was positioned.
        :raises InvalidTransactionStateError: if the consumer was not positioned from the database, or is behind it.
        """
        known = self._known(consumer)
        if known is None and consumer.identity in self._consumers:
            raise _of_another_membership("seek_to_stored")
        is_stored = known is None or known.is_stored
        done = {**self.done(consumer), **within}
        moves = []
        for partition, offset in sorted(offsets.items()):
            stored = done.get(partition)
            if stored is None and known is not None and is_stored and consumer.is_static:
                raise _of_another_membership("seek_to_stored")  # and had that partition before
            if stored is None or not is_stored:
                raise _not_positioned(partition)
            if offset < stored:
                raise InvalidTransactionStateError(
                    f"{partition}: the consumer is at {offset}, and the database at {stored}, so these records were "
                    "used before: call seek_to_stored(consumer); or change the row, to use them again"
                )
            if offset > stored:
                moves.append(Move(partition, stored, offset))
        return moves

    def committed(self, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that a unit of work with ``offsets`` was committed. Without other claims, all read records are used."""
        progress = self._known(consumer)
        if progress is not None:
            progress.done.update(offsets)
            if all(progress.done.get(partition) == offset for partition, offset in progress.claimed.items()):
                progress.put_right()

    def may_be_committed(self, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that the outcome of a unit of work with ``offsets`` is not known."""
        progress = self._known(consumer)
        if progress is not None:
            progress.in_doubt.update(offsets)

    def failed(self, worker: object | None) -> None:
        """Note that a unit of work of ``worker`` has failed: the records that its consumers have read since the
        previous unit are not used.

        :param worker: None if it is gone.
        """
        if worker is not None:
            self._failed_workers.add(worker)
            for progress in list(self._consumers.values()):
                progress.failed(worker)

    def _known(self, consumer: Consumer) -> _Progress | None:
        progress = self._consumers.get(consumer.identity)
        return progress if progress is not None and progress.member == consumer.member else None

    def _of(self, consumer: Consumer, worker: object | None) -> _Progress:
        progress = self._known(consumer)
        if progress is None:
            progress = self._consumers[consumer.identity] = _Progress(consumer.member)
        if worker is not None:
            progress.worker = weakref.ref(worker)
        self._consumers.move_to_end(consumer.identity)
        if len(self._consumers) > MOST_CONSUMERS:
            self._consumers.popitem(last=False)
        return progress


def _not_positioned(partition: TopicPartition) -> InvalidTransactionStateError:
    return InvalidTransactionStateError(
        f"{partition}: this consumer was not set to the offset in the database: subscribe(topics, on_assign="
        "dw.seek_to_stored); with an AsyncDualWrite and a confluent_kafka.Consumer, on_assign=dw.on_assign()"
    )


def _of_another_membership(remedy: str) -> RebalancedError:
    return RebalancedError(
        "the consumer's group membership has changed since its last seek, and another member may have had its "
        f"partitions meanwhile: the unit of work is rolled back; call {remedy}(consumer), and poll again"
    )
