"""What ``dualwrite move`` does: plan, copy, finish, check and compare."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Engine

from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition
from dualwrite.moving.applications import move_applications, require_settled
from dualwrite.moving.cluster_admin import MoveAdmin
from dualwrite.moving.copying import (
    Observe,
    PartitionComparison,
    compare_topic,
    copy_topic,
    records_behind,
    require_only_moved,
)
from dualwrite.moving.groups import changed_groups, chosen, groups_at, plain_offsets, require_stopped, translated
from dualwrite.moving.journal import (
    Finished,
    JournalRecord,
    MoveJournal,
    MoveState,
    SourceGroup,
    TopicPair,
    decode,
    journal_topic,
)
from dualwrite.moving.plan import APPEND_TIME, CREATE_TIME, MoveJob, Preparation, TopicPlan, plan_topics
from dualwrite.moving.results import MoveResult, SourceChanges, describe_changes
from dualwrite.moving.target_writer import MovedTopicReader, MoverProducer

_JOURNAL_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class ClusterMove:
    """A move between two clusters.

    Besides the errors that each method names, every method raises KafkaUnavailableError if a cluster does not answer,
    and KafkaRefusedError if it refuses. Then call the method again: it goes on where it stopped.

    :param source: how to reach the cluster that applications use now, by librdkafka's keys.
    :param target: the same for the cluster that they shall use.
    :raises InputError: if both are the same cluster.
    """

    def __init__(self, source: Mapping[str, Any], target: Mapping[str, Any], job: MoveJob) -> None:
        self._configs = source, target
        self._job = job
        self._source, self._target = MoveAdmin(source, "source"), MoveAdmin(target, "target")
        self.source_id, self.target_id = self._source.cluster_id(), self._target.cluster_id()
        if self.source_id == self.target_id:
            raise InputError(f"--from and --to are the same cluster, {self.source_id}")
        self._known_state: MoveState | None = None

    @property
    def is_finished(self) -> bool:
        """True if applications use the target for all topics of the job."""
        return not self._unfinished(self._plans())

    def plan(self) -> list[TopicPlan]:
        """The topics to move, and how they have to be prepared. Changes nothing.

        :raises InputError: if a topic cannot be moved.
        """
        plans = self._plans()
        for plan in self._unfinished(plans):
            if plan.target is not None:
                with closing(MovedTopicReader(self._configs[1], plan.source.name)) as target:
                    require_only_moved(plan.pair, self._state, target)
        return plans

    def copy(self, observe: Observe = lambda *_: None) -> MoveResult:
        """Create the topics that the target lacks, and copy what is not there yet. Applications may go on at the source
        meanwhile. Call it again to copy what has come since.

        :param observe: is called with the topic and the number of records, after each Kafka transaction.
        :raises InputError: if the move is finished, or a topic cannot be moved.
        """
        with self._writing() as writer:
            return self._copy(writer, observe)

    def finish(
        self, engines: Sequence[Engine] = (), observe: Observe = lambda *_: None, *, compares: bool = False
    ) -> MoveResult:
        """Copy the rest, and move the groups and the applications, which must have stopped. Afterwards applications use
        the target. After a crash, call it again.

        :param engines: the databases of the applications that use the source in units of work.
        :param compares: compare all records before the groups are moved.
        :raises InputError: if an application still runs, a transaction is open, a unit of work is in doubt, or the
            comparison finds a difference: the move is not finished then.
        """
        for engine in engines:
            require_settled(engine, self._configs[0], self.source_id)
        result = MoveResult()
        if not self.is_finished:
            with self._writing() as writer:
                result = self._finish_in_kafka(writer, observe, compares=compares)
        plans = self._moved_plans()
        for plan in plans:
            if plan.source.timestamp_type == APPEND_TIME:
                self._target.set_timestamp_type(plan.source.name, APPEND_TIME)
        pairs = {plan.source.name: plan.pair for plan in plans}

        def translate(place: TopicPartition, offset: int) -> int:
            return self._state.mapping(pairs[place.topic], place.partition).translate(offset)

        slots = sum(move_applications(engine, self.source_id, self.target_id, pairs, translate) for engine in engines)
        return MoveResult(result.copied, result.waiting, result.groups, slots)

    def changes(self) -> SourceChanges:
        """What was changed at the source since it was moved: a forgotten application still runs there.

        :raises InputError: if a topic was not moved.
        """
        plans = self._moved_plans()
        records: dict[TopicPartition, int] = {}
        for plan in plans:
            with closing(MovedTopicReader(self._configs[0], plan.source.name)) as source:
                for partition, count in records_behind(plan.pair, self._state, source).items():
                    records[TopicPartition(plan.source.name, partition)] = count
            for partition in self._source.open_partitions(plan.source):
                records.setdefault(TopicPartition(plan.source.name, partition), 0)
        finished = [plan for plan in plans if self._state.is_finished(plan.source.name)]
        moved = self._state.forward.groups_in([plan.source.name for plan in finished])
        return SourceChanges(records, changed_groups(groups_at(self._source, finished), moved))

    def compare(self) -> Iterator[PartitionComparison]:
        """Compare the moved records of each partition. Records that are written meanwhile do not count.

        :raises InputError: if a topic was not moved.
        """
        for plan in self._moved_plans():
            first = self._source.first_offsets(plan.source), self._target.first_offsets(plan.moved)
            is_compacted = plan.source.is_compacted or plan.moved.is_compacted
            with (
                closing(MovedTopicReader(self._configs[0], plan.source.name)) as source,
                closing(MovedTopicReader(self._configs[1], plan.source.name)) as target,
            ):
                yield from compare_topic(
                    plan.pair, self._state, source, target, first_offsets=first, is_compacted=is_compacted
                )

    @property
    def _state(self) -> MoveState:
        """What the journals of both clusters say. It is read once, and kept up to date."""
        if self._known_state is None:
            self._known_state = MoveState(
                forward=_read_journal(self._configs[1], self._target, self.source_id),
                backward=_read_journal(self._configs[0], self._source, self.target_id),
            )
        return self._known_state

    def _plans(self) -> list[TopicPlan]:
        names = set(self._job.topics) or None
        return plan_topics(self._job, self._source.topics(names), self._target.topics())

    def _unfinished(self, plans: Iterable[TopicPlan]) -> list[TopicPlan]:
        """Those of ``plans`` whose topics applications still use at the source."""
        return [plan for plan in plans if not self._state.is_finished(plan.source.name)]

    def _moved_plans(self) -> list[TopicPlan]:
        """The topics of the job, all of which must be in both clusters."""
        plans = self._plans()
        for plan in plans:
            if plan.target is None:
                raise InputError(f"topic {plan.source.name!r} was not moved: the target does not have it")
        return plans

    @contextmanager
    def _writing(self) -> Iterator[MoverProducer]:
        """The only producer of this move. The journal is read after it has fenced the others."""
        journal = journal_topic(self.source_id)
        if not self._target.topics([journal]):
            self._target.create_topic(journal, 1, _JOURNAL_SETTINGS, self._job.replication_factor)
        with closing(MoverProducer(self._configs[1], self.source_id)) as writer:
            self._known_state = None
            if self.is_finished:
                raise InputError(
                    "this move is finished, and applications use the target. To move back, exchange --from and --to"
                )
            yield writer

    def _copy(self, writer: MoverProducer, observe: Observe) -> MoveResult:
        copied: dict[str, int] = {}
        waiting = []
        for plan in self._prepared():
            with closing(MovedTopicReader(self._configs[0], plan.source.name)) as source:
                copied[plan.source.name] = copy_topic(plan.pair, self._state, source, writer, observe)
            if self._source.open_partitions(plan.source):
                waiting.append(plan.source.name)
        return MoveResult(copied, waiting)

    def _prepared(self) -> list[TopicPlan]:
        """The unfinished topics, after the target has all of them."""
        for plan in self._unfinished(self.plan()):
            name, partitions = plan.source.name, plan.source.partitions
            if plan.preparation is Preparation.CREATE:
                self._target.create_topic(name, partitions, plan.settings, self._job.replication_factor)
            elif plan.preparation is Preparation.ADD_PARTITIONS:
                self._target.add_partitions(name, partitions)
        prepared = self._unfinished(self._moved_plans())
        for plan in prepared:
            if plan.moved.timestamp_type != CREATE_TIME:
                self._target.set_timestamp_type(plan.source.name, CREATE_TIME)
        return prepared

    def _finish_in_kafka(self, writer: MoverProducer, observe: Observe, *, compares: bool) -> MoveResult:
        plans = self._unfinished(self._plans())
        groups = chosen(groups_at(self._source, plans), self._job.groups)
        require_stopped(self._source, "source", groups)
        require_stopped(self._target, "target", groups)
        result = self._copy(writer, observe)
        if result.waiting:
            raise InputError(
                f"topic {result.waiting[0]!r} has an open transaction at the source, so the move is not finished: end "
                "it first; see dualwrite transactions list"
            )
        if compares:
            self._require_equal()
        changes = self.changes()
        if changes:
            raise InputError(f"{describe_changes(changes)}. Stop it, and run the command again")
        pairs: dict[str, TopicPair] = {plan.source.name: plan.pair for plan in self._moved_plans()}
        groups = groups_at(self._source, plans)
        moved = chosen(groups, self._job.groups)

        def translate(place: TopicPartition, offset: int) -> int:
            return self._state.mapping(pairs[place.topic], place.partition).translate(offset)

        notes: list[JournalRecord] = [SourceGroup(group, plain_offsets(offsets)) for group, offsets in groups.items()]
        notes.append(Finished(self._state.next_number, tuple(plan.source.name for plan in plans)))
        writer.finish(translated(moved, translate), notes)
        self._state.forward.add_all(notes)
        return MoveResult(result.copied, (), sorted(moved))

    def _require_equal(self) -> None:
        differing = next((found for found in self.compare() if not found.is_equal), None)
        if differing is not None:
            raise InputError(
                f"topic {differing.topic!r}, partition {differing.partition}: the target has other records than the "
                "source, so the move is not finished; see dualwrite move --verify"
            )


def _read_journal(config: Mapping[str, Any], admin: MoveAdmin, source_id: str) -> MoveJournal:
    """The journal of moves from the cluster ``source_id`` in the cluster behind ``config``; empty if there is none."""
    journal, name = MoveJournal(), journal_topic(source_id)
    if admin.topics([name]):
        with closing(MovedTopicReader(config, name)) as reader:
            for batch in reader.read_on():
                journal.add_all(decode(record.value) for record in batch)
    return journal
