"""Groups with members that change their protocol: upgrades, downgrades, and members of both protocols (KIP-848)."""

from collections.abc import Iterable

from dualwrite.broker.core.consumer_protocol import read_assignment, write_assignment
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ListGroupsRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.conformance.cases.consumer_groups import member, new_topic, note
from tests.support.broker.group_worlds.mixed import metadata
from tests.support.conformance.subject import Subject
from tests.support.requests.consumer_group_calls import describe
from tests.support.requests.group_calls import heartbeat, join_request, leave, sync_request
from tests.support.requests.offset_calls import commit


class Classic:
    """A member of the classic protocol on a connection of its own. It does what it is asked to do, and no more."""

    def __init__(self, broker: Subject, group: str, *topics: str, instance_id: str | None = None) -> None:
        self.broker = broker
        self.client = broker.connect()
        self.group, self.topics, self.instance_id = group, topics, instance_id
        self.member_id, self.generation, self.protocol = "", -1, "range"
        self.owned: list[TopicPartition] = []

    def join(self, step: str, **more: object) -> Message:
        """Join with what is owned, and note the answer."""
        data = metadata(self.topics, self.owned, self.generation)
        given = {"protocols": [(self.protocol, data)], "instance_id": self.instance_id, **more}
        answer = self.client.ask(join_request(self.group, self.member_id, **given), 9)  # type: ignore[arg-type]
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.broker.call(answer.member_id, "classic")
            self.member_id = answer.member_id
            answer = self.client.ask(join_request(self.group, self.member_id, **given), 9)  # type: ignore[arg-type]
        if answer.error_code == ErrorCode.NONE:
            self.broker.call(answer.member_id, "classic")
            self.member_id, self.generation = answer.member_id, answer.generation_id
        self.broker.note(
            step,
            error=answer.error_code,
            generation=answer.generation_id,
            type=answer.protocol_type,
            protocol=answer.protocol_name,
            leads=answer.leader == self.member_id,
            members=len(answer.members),
        )
        return answer

    def sync(self, step: str, assigns: dict[str, bytes] | None = None, **more: object) -> None:
        """Sync, own what is assigned, and note it."""
        request = sync_request(
            self.group, self.generation, self.member_id, assigns, self.instance_id, protocol=self.protocol
        )
        for name, value in more.items():
            setattr(request, name, value)
        answer = self.client.ask(request, 5)
        if answer.error_code == ErrorCode.NONE:
            self.owned = sorted(read_assignment(answer.assignment).partitions)
        self.broker.note(
            step,
            error=answer.error_code,
            type=answer.protocol_type,
            protocol=answer.protocol_name,
            assigned=[partition.partition for partition in self.owned],
        )

    def beat(self, step: str, **more: object) -> None:
        """Note the answer to a heartbeat."""
        asked = {"generation": self.generation, "member_id": self.member_id, "instance_id": self.instance_id, **more}
        self.broker.note(step, error=heartbeat(self.client, self.group, **asked))  # type: ignore[arg-type]


def places(topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def alone(broker: Subject, group: str, topic: str, size: int, protocol: str = "range", **more: object) -> Classic:
    """The only member of a stable classic group, which has all partitions of ``topic``."""
    only = Classic(broker, group, topic, **more)  # type: ignore[arg-type]
    only.protocol = protocol
    only.join("the classic member joins")
    only.sync("the classic member assigns", {only.member_id: write_assignment(0, places(topic, range(size)))})
    return only


def note_described(broker: Subject, step: str, group: str) -> None:
    (answer,) = describe(broker.client, group)
    broker.note(
        f"described: {step}",
        error=answer.error_code,
        state=answer.group_state,
        epochs=[answer.group_epoch, answer.assignment_epoch],
        members=[
            (
                entry.member_id,
                entry.member_epoch,
                entry.member_type,
                entry.instance_id,
                [topic.partitions for topic in entry.assignment.topic_partitions],
                [topic.partitions for topic in entry.target_assignment.topic_partitions],
            )
            for entry in sorted(answer.members, key=lambda entry: (entry.member_type, entry.instance_id or ""))
        ],
    )


@case
def a_group_that_is_upgraded_and_downgraded(broker: Subject) -> None:
    topic, group = new_topic(broker, 4), broker.name("group")
    classic = alone(broker, group, topic, 4)
    commit(broker.client, group, {(topic, 0): 3}, generation_id_or_member_epoch=1, member_id=classic.member_id)
    newer = member(broker, group)
    note(broker, "a consumer joins", newer.join(topic))
    note_described(broker, "both", group)
    classic.beat("the classic member is asked to join")
    classic.sync("the classic member syncs first")
    classic.owned = []
    classic.join("the classic member joins again")
    classic.sync("the classic member has a half")
    answer = newer.beat()
    broker.note("the consumer has a half", epoch=answer.member_epoch, count=sum(map(len, newer.owned.values())))
    classic.beat("the classic member is alive")
    note_described(broker, "settled", group)
    listed = broker.client.ask(ListGroupsRequest(states_filter=[], types_filter=[]), 5)
    kinds = [(entry.group_type, entry.group_state) for entry in listed.groups if entry.group_id == group]
    broker.note("listed", kinds=kinds)
    note(broker, "the consumer leaves", newer.leave())
    note_described(broker, "after it left", group)
    classic.beat("the classic member is asked to join then")
    classic.beat("with the generation before", generation=classic.generation - 1)
    classic.owned = []
    answer = classic.join("the classic member leads")
    classic.sync("the classic member assigns again", {answer.member_id: write_assignment(0, places(topic, range(4)))})


@case
def a_cooperative_member_gives_up_in_two_steps(broker: Subject) -> None:
    topic, group = new_topic(broker, 4), broker.name("group")
    classic = alone(broker, group, topic, 4, "cooperative-sticky")
    newer = member(broker, group)
    note(broker, "a consumer joins", newer.join(topic))
    classic.beat("asked to join")
    classic.join("joins with everything")
    classic.sync("keeps a half")
    note(broker, "the consumer waits", newer.beat())
    classic.beat("asked to join without the other half")
    classic.join("joins with its half")
    classic.sync("keeps its half")
    answer = newer.beat()
    broker.note("the consumer has a half", epoch=answer.member_epoch, count=sum(map(len, newer.owned.values())))
    note(broker, "another joins", member(broker, group).join(topic))
    classic.beat("asked to join once more")


@case
def requests_of_a_classic_member_that_are_refused(broker: Subject) -> None:
    topic, group = new_topic(broker, 2), broker.name("group")
    newer = member(broker, group)
    note(broker, "a consumer joins", newer.join(topic))
    classic = Classic(broker, group, topic)
    classic.join("joins")
    classic.sync("syncs")
    for label, more in {
        "a stranger": {"member_id": "stranger"},
        "the consumer": {"member_id": newer.member_id},
        "an unknown instance": {"instance_id": "j"},
        "an earlier generation": {"generation": 1},
        "a later generation": {"generation": 9},
    }.items():
        classic.beat(f"heartbeat: {label}", **more)
    for label, fields in {
        "a stranger": {"member_id": "stranger"},
        "the consumer": {"member_id": newer.member_id},
        "an unknown instance": {"group_instance_id": "j"},
        "an earlier generation": {"generation_id": 1},
        "another protocol": {"protocol_name": "roundrobin"},
        "another type": {"protocol_type": "connect"},
    }.items():
        classic.sync(f"sync: {label}", **fields)
    for label, given in {
        "another type": {"protocol_type": "connect"},
        "another assignor": {"protocols": [("roundrobin", metadata([topic]))]},
        "a short session": {"session_timeout_ms": 1},
        "no assignor": {"protocols": []},
    }.items():
        Classic(broker, group, topic).join(f"join: {label}", **given)
    for label, (version, fields) in {
        "in its generation": (9, {"generation_id_or_member_epoch": classic.generation}),
        "in v8": (8, {"generation_id_or_member_epoch": classic.generation}),
        "in an earlier one": (9, {"generation_id_or_member_epoch": 1}),
        "in an earlier one in v8": (8, {"generation_id_or_member_epoch": 1}),
    }.items():
        errors = commit(broker.client, group, {(topic, 0): 5}, version, **{**fields, "member_id": classic.member_id})
        broker.note(f"commit: {label}", errors=errors)
    broker.note("LeaveGroup", errors=leave(broker.client, group, (classic.member_id, None)))
    note_described(broker, "after it left", group)


@case
def static_members_change_their_protocol(broker: Subject) -> None:
    topic, group = new_topic(broker, 2), broker.name("group")
    classic = alone(broker, group, topic, 2, instance_id="i")
    newer = member(broker, group, instance_id="i")
    note(broker, "restarts with the consumer protocol", newer.join(topic))
    classic.beat("the former one is fenced")
    note_described(broker, "after the restart", group)
    other = Classic(broker, group, topic, instance_id="j")
    other.join("another joins")
    other.sync("another syncs")
    again = Classic(broker, group, topic, instance_id="j")
    again.join("another restarts")
    again.sync("another syncs again")
    other.beat("its former self is fenced")


@case
def classic_groups_that_are_not_upgraded(broker: Subject) -> None:
    topic = new_topic(broker, 2)
    for label, (fields, assignment) in {
        "another type": ({"protocol_type": "connect"}, b""),
        "a malformed assignment": ({}, b"\x00\x01\x00"),
        "a word of another assignor": ({"protocols": [("mine", metadata([topic]))]}, b"word"),
    }.items():
        group = broker.name("group")
        classic = Classic(broker, group, topic)
        classic.protocol = "mine" if "protocols" in fields else "range"
        answer = classic.join(f"joins: {label}", **fields)
        if assignment == b"word":
            assignment = write_assignment(0, places(topic, [0, 1]))[:-4] + b"\x00\x00\x00\x01x"
        request = sync_request(group, answer.generation_id, answer.member_id, {answer.member_id: assignment})
        request.protocol_type, request.protocol_name = answer.protocol_type, answer.protocol_name
        broker.note(f"syncs: {label}", error=classic.client.ask(request, 5).error_code)
        note(broker, f"a consumer joins: {label}", member(broker, group).join(topic))
