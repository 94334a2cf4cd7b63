"""What ``dualwrite move`` does: plan, copy, finish, check and compare."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from dualwrite.coordinator.sql.dialects.url_text import url_text
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
    require_whole,
)
from dualwrite.moving.groups import (
    Translate,
    changed_groups,
    chosen,
    groups_at,
    plain_offsets,
    require_stopped,
    translated,
)
from dualwrite.moving.journal import (
    Finished,
    MoveJournal,
    MoveState,
    SourceGroup,
    decode,
    journal_topic,
)
from dualwrite.moving.offset_mapping import OffsetMapping
from dualwrite.moving.plan import APPEND_TIME, CREATE_TIME, MoveJob, Preparation, TopicPlan, left_out, plan_topics
from dualwrite.moving.results import MoveResult, SourceChanges, describe_changes
from dualwrite.moving.target_writer import USUAL_BATCH_BYTES, MovedTopicReader, MoverProducer

_LOOKS = 3
"""How often a topic is compared from which retention deletes records meanwhile."""
_JOURNAL_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "16000000",  # the end of a move is one record that names all topics
}


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
                self._target_ends(plan)
        return [self._with_defaults(plan) for plan in plans]

    def left_out(self) -> list[str]:
        """The topics that are neither moved nor Kafka's own: their names begin with two underscores."""
        return left_out(self._job, {} if self._job.topics else self._source.topics())

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
        names, translate = [plan.source.name for plan in plans], self._translation(plans)
        slots, unchanged = 0, []
        for engine in engines:
            moved = move_applications(engine, self.source_id, self.target_id, names, translate)
            slots += moved.slots
            if not any(moved):
                unchanged.append(url_text(engine.url))
        return replace(result, slots=slots, unchanged=unchanged)

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
            for partition in self._source.ends(plan.source).open_partitions:
                records.setdefault(TopicPartition(plan.source.name, partition), 0)
        finished = [plan for plan in plans if self._state.is_finished(plan.pair)]
        moved = self._state.forward.groups_in([plan.source.name for plan in finished])
        return SourceChanges(records, changed_groups(groups_at(self._source, finished), moved))

    def compare(self) -> Iterator[PartitionComparison]:
        """Compare the moved records of each partition. Records that are written meanwhile do not count.

        :raises InputError: if a topic was not moved.
        """
        for plan in self._moved_plans():
            for _ in range(_LOOKS):
                first = self._first_offsets(plan)
                compared = self._compared(plan, first)
                if all(found.is_equal for found in compared) or self._first_offsets(plan) == first:
                    break  # otherwise retention has deleted records meanwhile
            yield from compared

    def _first_offsets(self, plan: TopicPlan) -> tuple[Mapping[int, int], Mapping[int, int]]:
        return self._source.ends(plan.source).first, self._target.ends(plan.moved).first

    def _compared(
        self, plan: TopicPlan, first: tuple[Mapping[int, int], Mapping[int, int]]
    ) -> list[PartitionComparison]:
        is_compacted = plan.source.is_compacted or plan.moved.is_compacted
        with (
            closing(MovedTopicReader(self._configs[0], plan.source.name)) as source,
            closing(MovedTopicReader(self._configs[1], plan.source.name)) as target,
        ):
            return compare_topic(plan.pair, self._state, source, target, first_offsets=first, is_compacted=is_compacted)

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
        source = self._source.topics(set(self._job.topics) or None)
        return plan_topics(self._job, source, self._target.topics(list(source)))

    def _unfinished(self, plans: Iterable[TopicPlan]) -> list[TopicPlan]:
        """Those of ``plans`` whose topics applications still use at the source."""
        return [plan for plan in plans if plan.target is None or not self._state.is_finished(plan.pair)]

    def _moved_plans(self) -> list[TopicPlan]:
        """The topics of the job, all of which must be in both clusters."""
        plans = self._plans()
        for plan in plans:
            if plan.target is None:
                raise InputError(f"topic {plan.source.name!r} was not moved: the target does not have it")
        return plans

    def _with_defaults(self, plan: TopicPlan) -> TopicPlan:
        """``plan`` with the settings that the target would give the topic, if it is to be created."""
        if plan.target is not None:
            return plan
        name, partitions, replicas = plan.source.name, plan.source.partitions, self._job.replication_factor
        return replace(plan, at_creation=self._target.at_creation(name, partitions, plan.settings, replicas))

    def _target_ends(self, plan: TopicPlan, *, is_alone: bool = False) -> Mapping[int, int]:
        """Where the partitions of a topic at the target end, which must have the moved records and no others.

        :param is_alone: no other mover has a transaction open there.
        :raises InputError: if it has lost some, or has others.
        """
        name, ends = plan.source.name, self._target.ends(plan.moved)
        require_whole(plan.pair, self._state, self._source.ends(plan.source).high, ends.high)
        with closing(MovedTopicReader(self._configs[1], name)) as target:
            require_only_moved(plan.pair, self._state, target)
        if is_alone and ends.open_partitions:
            raise InputError(
                f"topic {name!r} has an open transaction at the target: a program writes there already. Stop it, and "
                "end the transaction; see dualwrite transactions list"
            )
        return ends.high

    def _translation(self, plans: Iterable[TopicPlan]) -> Translate:
        """The mapping of the offsets in the topics of ``plans``."""
        pairs = {plan.source.name: plan.pair for plan in plans}
        mappings: dict[TopicPartition, OffsetMapping] = {}

        def translate(place: TopicPartition, offset: int) -> int:
            if place not in mappings:
                mappings[place] = self._state.mapping(pairs[place.topic], place.partition)
            return mappings[place].translate(offset)

        return translate

    @contextmanager
    def _writing(self) -> Iterator[MoverProducer]:
        """The only producer of this move. The journal is read after it has fenced the others."""
        journal = journal_topic(self.source_id)
        sizes = [topic.largest_batch for plan in self._plans() for topic in (plan.source, plan.target) if topic]
        largest_batch = min((size for size in sizes if size is not None), default=USUAL_BATCH_BYTES)
        if not self._target.topics([journal]):
            self._target.create_topic(journal, 1, _JOURNAL_SETTINGS, self._job.replication_factor)
        with closing(MoverProducer(self._configs[1], self.source_id, largest_batch)) as writer:
            self._known_state = None
            if self.is_finished:
                raise InputError(
                    "this move is finished, and applications use the target. To move back, exchange --from and --to"
                )
            yield writer

    def _copy(self, writer: MoverProducer, observe: Observe) -> MoveResult:
        copied: dict[str, int] = {}
        waiting, on_one_node, differing = [], [], {}
        for plan, ends in self._prepared():
            name = plan.source.name
            if plan.is_on_one_node:
                on_one_node.append(name)
            with closing(MovedTopicReader(self._configs[0], name)) as source:
                copied[name] = copy_topic(plan.pair, self._state, source, writer, ends, observe)
            if self._source.ends(plan.source).open_partitions:
                waiting.append(name)
            if plan.differences:
                differing[name] = plan.differences
        writer.await_markers()  # else what follows finds records missing, and a transaction open
        return MoveResult(copied, waiting, differing=differing, on_one_node=on_one_node)

    def _prepared(self) -> list[tuple[TopicPlan, Mapping[int, int]]]:
        """The unfinished topics, after the target has all of them; each with the ends of its partitions there."""
        ends: dict[str, Mapping[int, int]] = {}
        plans = [self._with_defaults(plan) for plan in self._unfinished(self._plans())]
        for plan in plans:
            if plan.target is not None:
                ends[plan.source.name] = self._target_ends(plan, is_alone=True)
        for plan in plans:
            name, partitions = plan.source.name, plan.source.partitions
            if plan.preparation is Preparation.CREATE:
                self._target.create_topic(name, partitions, plan.settings, self._job.replication_factor)
            elif plan.preparation is Preparation.ADD_PARTITIONS:
                self._target.add_partitions(name, partitions)
        prepared = self._unfinished(self._moved_plans())
        for plan in prepared:
            if plan.moved.timestamp_type != CREATE_TIME:
                self._target.set_timestamp_type(plan.source.name, CREATE_TIME)
        made = {plan.source.name: plan.at_creation for plan in plans}
        return [
            (replace(plan, at_creation=made[plan.source.name]), ends.get(plan.source.name, {})) for plan in prepared
        ]

    def _finish_in_kafka(self, writer: MoverProducer, observe: Observe, *, compares: bool) -> MoveResult:
        plans = self._unfinished(self._plans())
        self._require_stopped(chosen(groups_at(self._source, plans), self._job.groups))
        result = self._copy(writer, observe)
        if result.waiting:
            raise InputError(
                f"topic {result.waiting[0]!r} has an open transaction at the source, so the move is not finished: end "
                "it first; see dualwrite transactions list"
            )
        compared = self._equal_partitions() if compares else ()
        changes = self.changes()
        if changes:
            raise InputError(f"{describe_changes(changes)}. Stop it, and run the command again")
        plans = self._unfinished(self._moved_plans())
        for plan in plans:
            self._target_ends(plan, is_alone=True)
        groups = groups_at(self._source, plans)
        moved = chosen(groups, self._job.groups)
        self._require_stopped(moved)  # again: a consumer may have begun meanwhile
        notes = [SourceGroup(group, plain_offsets(offsets)) for group, offsets in groups.items()]
        end = Finished(self._state.next_number, tuple(plan.pair for plan in plans))
        writer.finish(translated(moved, self._translation(plans)), notes, end)
        self._state.forward.add_all([*notes, end])
        return replace(result, groups=sorted(moved), compared=compared)

    def _require_stopped(self, groups: Iterable[str]) -> None:
        names = list(groups)
        require_stopped(self._source, "source", names)
        require_stopped(self._target, "target", names)

    def _equal_partitions(self) -> list[PartitionComparison]:
        compared = list(self.compare())
        differing = next((found for found in compared if not found.is_equal), None)
        if differing is not None:
            raise InputError(
                f"topic {differing.topic!r}, partition {differing.partition}: the target has other records than the "
                "source, so the move is not finished; see dualwrite move --verify"
            )
        return compared


def _read_journal(config: Mapping[str, Any], admin: MoveAdmin, source_id: str) -> MoveJournal:
    """The journal of moves from the cluster ``source_id`` in the cluster behind ``config``; empty if there is none."""
    journal, name = MoveJournal(), journal_topic(source_id)
    if admin.topics([name]):
        with closing(MovedTopicReader(config, name)) as reader:
            for batch in reader.read_on():
                journal.add_all(decode(record.value) for record in batch)
    return journal
