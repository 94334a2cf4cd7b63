"""Committed offsets (KIP-98, KIP-447): who may commit, what is fetched, and what goes with a group."""

from dualwrite.wire.apis import (
    DeleteGroupsRequest,
    OffsetDeleteRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.conformance.cases.groups import commit_as, leave, member, note_described, stable
from tests.support.conformance.subject import Subject, Word
from tests.support.requests.calls import unique
from tests.support.requests.offset_calls import commit, fetch_request

FIRST_WITH_MESSAGES = 3


@case
def commits_of_members_and_others(broker: Subject) -> None:
    group, topic = broker.name("group"), broker.topic()
    only = stable(broker, group)
    for label, fields in {
        "a member": {},
        "an old generation": {"generation_id_or_member_epoch": 0},
        "a later generation": {"generation_id_or_member_epoch": 7},
        "a stranger": {"member_id": "stranger"},
        "nobody": {"member_id": "", "generation_id_or_member_epoch": -1},
        "an unknown instance": {"group_instance_id": "i"},
    }.items():
        broker.note(label, errors=commit_as(only, topic, **fields))
    leave(broker, "leaves", only)
    broker.note("a member of an empty group", errors=commit_as(only, topic))
    outside = member(broker, group)
    broker.note("nobody, while it is empty", errors=commit_as(outside, topic))
    fresh = member(broker, broker.name("group"))
    broker.note("nobody, in no group", errors=commit_as(fresh, topic))
    stranger = member(broker, unique("group"), member_id="x", generation=3)
    broker.note("somebody, in no group", errors=commit_as(stranger, topic))
    broker.note("no group", errors=commit(broker.client, "", {(topic, 0): 5}))
    broker.note("an unknown topic", errors=commit(broker.client, fresh.group, {("no-such-topic", 0): 5}))
    broker.note("an unknown partition", errors=commit(broker.client, fresh.group, {(topic, 7): 5}))
    for length in (4096, 4097):
        broker.note(f"{length} letters", errors=commit(broker.client, fresh.group, {(topic, 0): (1, 0, "x" * length)}))
    broker.note("a negative offset", errors=commit(broker.client, fresh.group, {(topic, 0): -5}))


def note_fetched(
    broker: Subject, step: str, group: str, places: list[tuple[str, int]] | None, version: int = 9
) -> None:
    answer = broker.client.ask(fetch_request(broker.client, {group: places}, version), version)
    found = answer.groups[0] if version >= 8 else answer
    broker.note(
        step,
        error=found.error_code,
        offsets=[
            (
                topic.name,
                entry.partition_index,
                Word(ErrorCode(entry.error_code).name),
                entry.committed_offset,
                entry.committed_leader_epoch,
                entry.metadata,
            )
            for topic in sorted(found.topics, key=lambda topic: str(topic.name))
            for entry in sorted(topic.partitions, key=lambda entry: int(entry.partition_index))
        ],
    )


@case
def offsets_fetched(broker: Subject) -> None:
    group, topic = broker.name("group"), broker.topic(2)
    note_fetched(broker, "an unknown group", group, [(topic, 0)])
    note_fetched(broker, "everything of an unknown group", group, None)
    commit(broker.client, group, {(topic, 0): (7, 0, "seven"), (topic, 1): 8})
    commit(broker.client, group, {(topic, 1): (9, -1, "nine")})
    for version in (1, 2, 5, 7, 8, 9):
        note_fetched(broker, f"v{version}", group, [(topic, 0), (topic, 1)], version)
        if version >= 2:
            note_fetched(broker, f"everything in v{version}", group, None, version)
    note_fetched(broker, "an unknown partition", group, [(topic, 5)])
    note_fetched(broker, "an unknown topic", group, [("no-such-topic", 0)])
    note_fetched(broker, "no group", "", [(topic, 0)])
    for label, fields in {
        "a stranger": {"member_id": "x", "member_epoch": 3},
        "nobody": {"member_id": None, "member_epoch": -1},
    }.items():
        request = fetch_request(broker.client, {group: [(topic, 0)]}, 9)
        for name, value in fields.items():
            setattr(request.groups[0], name, value)
        broker.note(label, error=broker.client.ask(request, 9).groups[0].error_code)


@case
def groups_deleted(broker: Subject) -> None:
    group, topic = broker.name("group"), broker.topic()
    only = stable(broker, group)
    commit_as(only, topic)

    def delete(step: str, *names: str, version: int = 2) -> None:
        results = broker.client.ask(DeleteGroupsRequest(groups_names=list(names)), version).results
        errors = {entry.group_id: ErrorCode(entry.error_code) for entry in results}
        messages = {entry.group_id: entry.error_message for entry in results}
        said = {} if version < FIRST_WITH_MESSAGES else {"messages": [messages[name] for name in names]}
        broker.note(step, errors=[errors[name] for name in names], **said)

    delete("with a member", group)
    delete("with a member, v3", group, "no-such-group", version=FIRST_WITH_MESSAGES)
    leave(broker, "leaves", only)
    delete("empty, unknown", group, "no-such-group")
    delete("again", group)
    commit(broker.client, group, {(topic, 0): 5})
    delete("once more, v3", group, version=FIRST_WITH_MESSAGES)
    note_fetched(broker, "its offsets", group, None)
    note_described(broker, "then", group)


@case
def offsets_deleted(broker: Subject) -> None:
    group, topic = broker.name("group"), broker.topic(2)

    def delete(step: str, name: str, *places: tuple[str, int]) -> None:
        entry = OffsetDeleteRequest.OffsetDeleteRequestTopic
        wanted = [
            entry(name=owner, partitions=[entry.OffsetDeleteRequestPartition(partition_index=index)])
            for owner, index in places
        ]
        answer = broker.client.ask(OffsetDeleteRequest(group_id=name, topics=wanted), 0)
        errors = [Word(ErrorCode(seen.error_code).name) for owner in answer.topics for seen in owner.partitions]
        broker.note(step, error=answer.error_code, partitions=errors)

    delete("of an unknown group", group, (topic, 0))
    delete("of no group", "", (topic, 0))
    commit(broker.client, group, {(topic, 0): 5, (topic, 1): 6})
    delete("one", group, (topic, 0))
    delete("one again", group, (topic, 0))
    delete("of an unknown topic", group, ("no-such-topic", 0))
    note_fetched(broker, "then", group, None)
    delete("the last", group, (topic, 1))
    note_described(broker, "at last", group)
