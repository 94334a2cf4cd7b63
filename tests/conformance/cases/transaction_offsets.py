"""Offsets in transactions: AddOffsetsToTxn, TxnOffsetCommit of both versions, who may see them (KIP-98, KIP-447)."""

import uuid

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import AddOffsetsToTxnRequest, Message, TxnOffsetCommitRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.conformance.cases.groups import stable
from tests.conformance.cases.transactions import Actor
from tests.support.conformance.subject import Subject, Word
from tests.support.requests.calls import topic_id
from tests.support.requests.offset_calls import commit, fetch_request

FIRST_WITH_TOPIC_IDS = 6


def add_group(actor: Actor, step: str, group: str, version: int = 4) -> None:
    """AddOffsetsToTxn."""

    def ask() -> Message:
        request = AddOffsetsToTxnRequest(
            transactional_id=actor.name,
            producer_id=actor.identity.producer_id,
            producer_epoch=actor.identity.epoch,
            group_id=group,
        )
        return actor.broker.client.ask(request, version)

    actor.broker.note(step, error=actor.broker.settled(ask).error_code)


def named(broker: Subject, topic: object, version: int) -> dict[str, object]:
    """A topic as a version names it; from v6 on a name that is an id already stands for itself."""
    if version < FIRST_WITH_TOPIC_IDS:
        return {"name": topic}
    return {"topic_id": topic if isinstance(topic, uuid.UUID) else topic_id(broker.client, str(topic))}


def commit_in(actor: Actor, step: str, group: str, offset: int, version: int = 5, **fields: object) -> None:
    """TxnOffsetCommit of one offset."""
    entry = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = fields.pop("partition", 0)
    topic = fields.pop("topic", actor.topic)
    metadata = fields.pop("metadata", "")
    position = entry.TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
    )
    given: dict[str, object] = {
        "transactional_id": actor.name,
        "group_id": group,
        "producer_id": actor.identity.producer_id,
        "producer_epoch": actor.identity.epoch,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [entry(**named(actor.broker, topic, version), partitions=[position])],
        **fields,
    }
    answer = actor.broker.client.ask(TxnOffsetCommitRequest(**given), version)
    errors = [Word(ErrorCode(seen.error_code).name) for owner in answer.topics for seen in owner.partitions]
    actor.broker.note(step, errors=errors)


def seen(broker: Subject, step: str, group: str, topic: str) -> None:
    """What OffsetFetch says, with and without RequireStable."""
    for stable_only in (False, True):
        answer = broker.client.ask(fetch_request(broker.client, {group: [(topic, 0)]}, 9, stable_only), 9)
        (found,) = answer.groups
        ((entry,),) = [owner.partitions for owner in found.topics]
        broker.note(
            f"{step}{', stable' if stable_only else ''}",
            error=found.error_code,
            offset=entry.committed_offset,
            partition=Word(ErrorCode(entry.error_code).name),
        )


@case
def offsets_of_the_first_version(broker: Subject) -> None:
    for version in range(5):
        actor, group = Actor(broker).init(f"v{version}: init"), broker.name("group")
        add_group(actor, f"v{version}: add", group, min(version, 3))
        commit_in(actor, f"v{version}: commit", group, 7, version)
        seen(broker, f"v{version}: pending", group, actor.topic)
        actor.end(f"v{version}: end", version % 2 == 0)
        seen(broker, f"v{version}: then", group, actor.topic)


@case
def offsets_of_the_second_version(broker: Subject) -> None:
    group = broker.name("group")
    actor = Actor(broker).init("init")
    for number in range(3):
        commit_in(actor, f"{number}: commit", group, number + 5)
        actor.describe(f"{number}: open")
        seen(broker, f"{number}: pending", group, actor.topic)
        actor.end(f"{number}: end", number != 1, 5)
        seen(broker, f"{number}: then", group, actor.topic)


@case
def offsets_that_were_not_added(broker: Subject) -> None:
    actor, group = Actor(broker).init("init"), broker.name("group")
    for version in (0, 3, 4):
        commit_in(actor, f"nothing open, v{version}", group, 7, version)
    actor.add("add a partition", (actor.topic, 0))
    for version in (0, 3, 4):
        commit_in(actor, f"not added, v{version}", group, 7, version)
    add_group(actor, "add", group)
    commit_in(actor, "added, v4", group, 7, 4)
    commit_in(actor, "another group", broker.name("group"), 7, 4)


@case
def groups_that_cannot_be_added(broker: Subject) -> None:
    actor = Actor(broker).init("init")
    add_group(actor, "no name", "")
    actor.identity = ProducerIdentity(4711, 0)
    add_group(actor, "a stranger", broker.name("group"))
    unknown = Actor(broker)
    unknown.identity = ProducerIdentity(4711, 0)
    add_group(unknown, "an unknown transactional id", broker.name("group"))
    first = Actor(broker).init("first")
    Actor(broker, first.name, first.topic).init("second")
    for version in (1, 2, 4):
        add_group(first, f"fenced in v{version}", broker.name("group"), version)
    for version in (1, 2, 3, 4, 5):
        commit_in(first, f"commit of the fenced in v{version}", broker.name("group"), 7, version)


@case
def offsets_fenced_by_the_group(broker: Subject) -> None:
    group = broker.name("group")
    only = stable(broker, group)
    actor = Actor(broker).init("init")
    mine: dict[str, object] = {"generation_id": only.generation, "member_id": only.member_id}
    for version in (3, 5):
        if version == 3:
            add_group(actor, "add", group)
        for label, fields in {
            "a member": mine,
            "an old generation": {**mine, "generation_id": 0},
            "a later generation": {**mine, "generation_id": 9},
            "a stranger": {**mine, "member_id": "stranger"},
            "an unknown instance": {**mine, "group_instance_id": "i"},
            "nobody": {},
            "an id without a generation": {"member_id": only.member_id},
        }.items():
            commit_in(actor, f"{label}, v{version}", group, 7, version, **fields)
        actor.end(f"end v{version}", version=version)
    for version in (3, 5, 6):
        if version == 3:
            add_group(actor, "add to none", broker.name("group"))
        label = "somebody of an unknown group" + ("" if version == 5 else f", v{version}")
        commit_in(actor, label, broker.name("group"), 7, version, generation_id=3, member_id="x")
        actor.end(f"end of nothing v{version}", version=4 if version == 3 else 5)


@case
def offsets_of_topics_by_their_ids(broker: Subject) -> None:
    actor, group = Actor(broker).init("init"), broker.name("group")
    only = stable(broker, group)
    mine: dict[str, object] = {"generation_id": only.generation, "member_id": only.member_id}
    commit_in(actor, "a member", group, 7, 6, **mine)
    seen(broker, "pending", group, actor.topic)
    commit_in(actor, "an old generation", group, 8, 6, **{**mine, "generation_id": 0})
    commit_in(actor, "an unknown id", group, 8, 6, topic=uuid.UUID(int=9), **mine)
    commit_in(actor, "no id", group, 8, 6, topic=uuid.UUID(int=0), **mine)
    commit_in(actor, "an unknown partition", group, 8, 6, partition=9, **mine)
    actor.end("end", version=5)
    seen(broker, "then", group, actor.topic)
    actor.describe("described")
    other = Actor(broker).init("other")
    commit_in(other, "an unknown id alone", group, 8, 6, topic=uuid.UUID(int=9))
    other.describe("nothing has begun")
    other.identity = ProducerIdentity(other.identity.producer_id, 9)
    commit_in(other, "an unknown id, a stranger", group, 8, 6, topic=uuid.UUID(int=9))
    commit_in(other, "a stranger", group, 8, 6)


@case
def offsets_that_are_not_fit(broker: Subject) -> None:
    actor, group = Actor(broker).init("init"), broker.name("group")
    commit_in(actor, "an unknown partition", group, 7, partition=9)
    commit_in(actor, "an unknown topic", group, 7, topic="no-such-topic")
    commit_in(actor, "4096 letters", group, 7, metadata="x" * 4096)
    commit_in(actor, "4097 letters", group, 7, metadata="x" * 4097)
    commit_in(actor, "no group", "", 7)
    actor.end("end", version=5)


@case
def what_is_pending_hides_nothing(broker: Subject) -> None:
    actor, group = Actor(broker).init("init"), broker.name("group")
    commit(broker.client, group, {(actor.topic, 0): 3})
    commit_in(actor, "pending", group, 7)
    seen(broker, "before the end", group, actor.topic)
    broker.note("a plain commit meanwhile", errors=commit(broker.client, group, {(actor.topic, 0): 4}))
    seen(broker, "after the plain commit", group, actor.topic)
    actor.end("commit", True, 5)
    seen(broker, "at last", group, actor.topic)
