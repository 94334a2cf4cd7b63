"""Groups of the consumer protocol: requests that are refused, epochs, assignments, static members (KIP-848)."""

from dualwrite.wire.apis import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    ListGroupsRequest,
    Message,
    OffsetFetchRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject
from tests.support.requests import calls
from tests.support.requests.consumer_group_calls import ConsumerClient, describe, owned_of
from tests.support.requests.group_calls import join_request, joined_member, leave, sync_request
from tests.support.requests.offset_calls import commit
from tests.support.waiting import eventually


def member(broker: Subject, group: str, **more: object) -> ConsumerClient:
    """A client that may become a member."""
    made = ConsumerClient(broker.connect(), group, **more)  # type: ignore[arg-type]
    broker.call(made.member_id, "member")
    return made


def new_topic(broker: Subject, partitions: int = 1) -> str:
    """A new topic whose id has a name, too, and that the group coordinator knows. Apache Kafka's hears of a topic after
    the leader does, and before another topic that is created then shows in Metadata."""
    topic = broker.topic(partitions)
    broker.call(calls.topic_id(broker.client, topic), "id")  # type: ignore[arg-type]
    later = calls.new_topic(broker.client)
    assert eventually(lambda: calls.metadata(broker.client, later).topics[0].error_code == ErrorCode.NONE)
    return topic


def note(broker: Subject, step: str, answer: Message) -> None:
    """Note a heartbeat's answer."""
    broker.note(
        step,
        error=answer.error_code,
        message=bool(answer.error_message),
        me=answer.member_id,
        epoch=answer.member_epoch,
        assigned=owned_of(answer.assignment),
    )


@case
def requests_that_are_refused(broker: Subject) -> None:
    only = member(broker, broker.name("group"))
    whole = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "owned": {}}
    for label, (epoch, fields) in {
        "without a timeout": (0, {**whole, "rebalance_timeout_ms": -1}),
        "without partitions": (0, {**whole, "owned": None}),
        "with partitions": (0, {**whole, "owned": {calls.topic_id(broker.client, broker.topic()): [0]}}),
        "without a subscription": (0, {**whole, "subscribed_topic_names": None}),
        "with a blank instance": (0, {**whole, "instance_id": " "}),
        "with a blank rack": (0, {**whole, "rack_id": ""}),
        "with an unknown assignor": (0, {**whole, "server_assignor": "sticky"}),
        "with a bad pattern": (0, {**whole, "subscribed_topic_regex": "("}),
        "with an epoch in an unknown group": (5, {}),
        "leaving an unknown group": (-1, {}),
        "leaving for a while without an instance": (-2, {}),
        "with a negative epoch": (-3, {}),
    }.items():
        note(broker, label, only.say(epoch, **fields))
    for version in (0, 1):
        nameless = member(broker, broker.name("group"), member_id="")
        answer = nameless.say(0, version, **whole)
        broker.note(f"without a member id in v{version}", error=answer.error_code, given=bool(answer.member_id))
    note(broker, "without a group", member(broker, "").say(0, **whole))


@case
def one_member_lives(broker: Subject) -> None:
    topic, group = new_topic(broker, 2), broker.name("group")
    only = member(broker, group)
    note(broker, "joins", only.join(topic))
    note(broker, "is alive", only.beat())
    note(broker, "repeats everything", only.beat(rebalance_timeout_ms=60_000, subscribed_topic_names=[topic]))
    note(broker, "with a later epoch", only.say(9))
    note(broker, "with an earlier epoch", only.say(only.epoch - 1))
    note(broker, "a stranger", member(broker, group).say(1))
    note(broker, "joins again", only.join(topic))
    note(broker, "leaves", only.leave())
    note(broker, "leaves again", only.leave())
    note(broker, "alive after it left", only.say(1))


@case
def two_members_share(broker: Subject) -> None:
    topic, group = new_topic(broker, 4), broker.name("group")
    first, second = member(broker, group), member(broker, group)
    note(broker, "the first joins", first.join(topic))
    note(broker, "the second joins", second.join(topic))
    note(broker, "the second waits", second.beat())
    note(broker, "the first keeps all", first.say(first.epoch, owned=first.owned))
    revoked = first.beat()
    broker.note("the first is asked again", epoch=revoked.member_epoch, assigned=owned_of(revoked.assignment))
    (described,) = describe(broker.client, group)
    entry = next(entry for entry in described.members if entry.member_id == first.member_id)
    held, wanted = owned_of(entry.assignment), owned_of(entry.target_assignment)
    broker.note("described: the first has to give some up", state=described.group_state, held=held, target=wanted)
    first.owned = {topic_id: numbers[:2] for topic_id, numbers in first.owned.items()}
    answer = first.beat()
    broker.note("the first has given up", epoch=answer.member_epoch)
    answer = second.beat()
    broker.note("the second gets them", epoch=answer.member_epoch, count=sum(map(len, second.owned.values())))
    note(broker, "the second leaves", second.leave())
    answer = first.beat()
    broker.note("the first gets all", epoch=answer.member_epoch, count=sum(map(len, first.owned.values())))


@case
def static_members(broker: Subject) -> None:
    topic, group = new_topic(broker, 2), broker.name("group")
    first = member(broker, group, instance_id="i")
    note(broker, "joins", first.join(topic))
    other = member(broker, group, instance_id="i")
    note(broker, "another with its instance", other.join(topic))
    note(broker, "another is alive", other.say(1))
    note(broker, "an unknown instance", member(broker, group, instance_id="j").say(1))
    note(broker, "leaves for a while", first.leave(-2))
    note(broker, "alive after it left", first.beat())
    note(broker, "another comes back", other.join(topic))
    note(broker, "the old one", first.beat())
    note(broker, "the old one leaves", first.leave())
    note(broker, "leaves for good", other.leave())


@case
def commits_and_epochs(broker: Subject) -> None:
    topic, group = new_topic(broker, 2), broker.name("group")
    first, second = member(broker, group), member(broker, group)
    first.join(topic)
    for label, (version, fields) in {
        "in its epoch": (9, {"generation_id_or_member_epoch": first.epoch, "member_id": first.member_id}),
        "in v8": (8, {"generation_id_or_member_epoch": first.epoch, "member_id": first.member_id}),
        "in a later epoch": (9, {"generation_id_or_member_epoch": 9, "member_id": first.member_id}),
        "in an earlier epoch": (9, {"generation_id_or_member_epoch": 0, "member_id": first.member_id}),
        "a stranger": (9, {"generation_id_or_member_epoch": 1, "member_id": "stranger"}),
        "outside": (9, {}),
    }.items():
        broker.note(label, errors=commit(broker.client, group, {(topic, 0): 5}, version, **fields))
    late = {"generation_id_or_member_epoch": first.epoch, "member_id": first.member_id}
    second.join(topic)
    first.beat()
    first.owned = {topic_id: numbers[:1] for topic_id, numbers in first.owned.items()}
    first.beat()
    broker.note("late for its own", errors=commit(broker.client, group, {(topic, 0): 6}, **late))
    broker.note("late for what it gave up", errors=commit(broker.client, group, {(topic, 1): 6}, **late))
    entry = OffsetFetchRequest.OffsetFetchRequestGroup
    for label, (member_id, epoch) in {
        "fetch in its epoch": (first.member_id, first.epoch),
        "fetch in an earlier epoch": (first.member_id, first.epoch - 1),
        "fetch of a stranger": ("stranger", 1),
        "fetch of nobody": (None, -1),
    }.items():
        asked = entry(group_id=group, member_id=member_id, member_epoch=epoch, topics=None)
        answer = broker.client.ask(OffsetFetchRequest(groups=[asked], require_stable=False), 9).groups[0]
        offsets = [
            (found.name, [partition.committed_offset for partition in found.partitions]) for found in answer.topics
        ]
        broker.note(label, error=answer.error_code, offsets=offsets)


@case
def groups_described_listed_and_deleted(broker: Subject) -> None:
    topic, group = new_topic(broker), broker.name("group")
    _note_described(broker, "unknown", group)
    only = member(broker, group)
    only.join(topic)
    commit(broker.client, group, {(topic, 0): 1}, generation_id_or_member_epoch=1, member_id=only.member_id)
    _note_described(broker, "stable", group)
    for version in (5, 6):
        request = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
        answer = broker.client.ask(request, version).groups[0]
        broker.note(f"as a classic group in v{version}", error=answer.error_code, state=answer.group_state)
    for label, types in {"all": [], "consumer": ["Consumer"], "classic": ["classic"]}.items():
        answer = broker.client.ask(ListGroupsRequest(states_filter=[], types_filter=types), 5)
        seen = [
            (entry.protocol_type, entry.group_state, entry.group_type)
            for entry in answer.groups
            if entry.group_id == group
        ]
        broker.note(f"listed: {label}", seen=seen)
    broker.note("deleted with a member", errors=_delete(broker, group))
    only.leave()
    _note_described(broker, "empty", group)
    broker.note("deleted", errors=_delete(broker, group))
    _note_described(broker, "deleted", group)


@case
def protocols_that_meet(broker: Subject) -> None:
    topic, group = new_topic(broker), broker.name("group")
    commit(broker.client, group, {(topic, 0): 1})
    only = member(broker, group)
    note(broker, "joins a group of offsets alone", only.join(topic))
    answer = broker.client.ask(join_request(group), 4)
    broker.note("a classic member joins", error=answer.error_code, given=bool(answer.member_id))
    answer = broker.client.ask(join_request(group, only.member_id), 4)
    broker.note("a classic member joins with its id", error=answer.error_code)
    beat = HeartbeatRequest(group_id=group, member_id=only.member_id, generation_id=only.epoch)
    broker.note("a classic heartbeat", error=broker.client.ask(beat, 4).error_code)
    broker.note("SyncGroup", error=broker.client.ask(sync_request(group, only.epoch, only.member_id), 5).error_code)
    broker.note("LeaveGroup of a stranger", errors=leave(broker.client, group, ("stranger", None)))
    broker.note("LeaveGroup", errors=leave(broker.client, group, (only.member_id, None)))
    note(broker, "alive after LeaveGroup", only.beat())
    answer = broker.client.ask(join_request(group), 4)
    broker.note("a classic member joins when it is empty", error=answer.error_code)


@case
def a_classic_group_with_members(broker: Subject) -> None:
    topic, group = new_topic(broker), broker.name("group")
    classic = joined_member(broker.client, group, topic)
    only = member(broker, group)
    note(broker, "joins", only.join(topic))
    note(broker, "is alive", only.say(1))
    note(broker, "leaves", only.leave())
    _note_described(broker, "as a consumer group", group)
    broker.note("the classic member leaves", errors=leave(broker.client, group, (classic.member_id, None)))
    note(broker, "is alive when it is empty", only.say(1))
    note(broker, "joins when it is empty", only.join(topic))


@case
def removed_by_instance(broker: Subject) -> None:
    topic, group = new_topic(broker), broker.name("group")
    static = member(broker, group, instance_id="i")
    static.join(topic)
    for label, identity in {
        "an unknown instance": ("", "j"),
        "with another's id": ("stranger", "i"),
        "the instance": ("", "i"),
        "the instance again": ("", "i"),
    }.items():
        broker.note(label, errors=leave(broker.client, group, identity))
    note(broker, "alive then", static.beat())


@case
def assignors_and_subscriptions(broker: Subject) -> None:
    first_topic, second_topic, group = new_topic(broker), new_topic(broker), broker.name("group")
    only = member(broker, group)
    note(broker, "joins by range", only.join(first_topic, server_assignor="range"))
    _note_described(broker, "by range", group)
    note(broker, "prefers uniform", only.beat(server_assignor="uniform"))
    note(broker, "reads another topic", only.beat(subscribed_topic_names=[second_topic]))
    note(broker, "has given up", only.beat())
    note(broker, "reads no topic", only.beat(subscribed_topic_names=[]))
    note(broker, "has given up everything", only.beat())
    note(broker, "a bad pattern", only.beat(subscribed_topic_regex="["))
    empty = member(broker, broker.name("group"))
    note(broker, "joins without topics", empty.join())
    note(broker, "is alive without topics", empty.beat())


def _note_described(broker: Subject, step: str, group: str) -> None:
    (answer,) = describe(broker.client, group)
    broker.note(
        f"described: {step}",
        error=answer.error_code,
        state=answer.group_state,
        epochs=[answer.group_epoch, answer.assignment_epoch],
        assignor=answer.assignor_name,
        members=[
            (
                entry.member_id,
                entry.member_epoch,
                entry.client_id,
                entry.client_host,
                entry.subscribed_topic_names,
                entry.subscribed_topic_regex,
                owned_of(entry.assignment),
                owned_of(entry.target_assignment),
                entry.member_type,
            )
            for entry in answer.members
        ],
    )


def _delete(broker: Subject, group: str) -> list[ErrorCode]:
    answer = broker.client.ask(DeleteGroupsRequest(groups_names=[group]), 2)
    return [ErrorCode(result.error_code) for result in answer.results]
