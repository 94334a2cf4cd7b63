"""Members of classic groups that fall silent: in a generation, and in each phase of a rebalance (KIP-345, KIP-394)."""

from collections.abc import Generator

from dualwrite.wire.apis import DescribeGroupsRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.conformance.cases.groups import JOIN, SYNC, ConnectedMember, commit_as, member, note_joined, stable
from tests.conformance.cases.transaction_offsets import commit_in
from tests.conformance.cases.transactions import NotingProducer
from tests.support.conformance.scenarios import Steps, run_together, until
from tests.support.conformance.subject import Subject
from tests.support.requests.raw_client import key_of

_SESSION_MS = 6000
_REBALANCE_MS = 5000
_LONG_REBALANCE_MS = 8000


class Parked:
    """A request of ``owner`` whose answer comes later."""

    def __init__(self, owner: ConnectedMember, request: Message, version: int) -> None:
        self._owner, self._key, self._version = owner, key_of(request), version
        self._sent = owner.client.send(request, version)

    def answer(self) -> Generator[None, None, Message]:
        """The answer, once it is there."""
        yield from until(self._owner.client.has_answer, bool)
        return self._owner.client.receive(self._key, self._version, self._sent)


def parked_join(joining: ConnectedMember) -> Parked:
    """JoinGroup with an id that the broker has given."""
    if not joining.member_id and joining.instance is None:
        joining.ask()
    return Parked(joining, joining.request(), JOIN)


def joined(joining: ConnectedMember, step: str, parked: Parked) -> Steps:
    """Note the answer to a JoinGroup, and follow it."""
    answer = yield from parked.answer()
    joining.broker.call(answer.member_id, "member")
    joining.member_id, joining.generation = answer.member_id, answer.generation_id
    note_joined(joining.broker, step, answer)


def two(first: ConnectedMember, second: ConnectedMember) -> Steps:
    """Let both join one generation, which the first leads and has not assigned."""
    first.join()
    first.sync({first.member_id: b"all"})
    parked = parked_join(second)
    yield from until(first.beat, lambda error: error == ErrorCode.REBALANCE_IN_PROGRESS)
    first.ask()
    yield from joined(second, "the second joins", parked)


def assigned(first: ConnectedMember, *others: ConnectedMember) -> None:
    """Let the leader assign, and the others ask for their parts."""
    everyone = (first, *others)
    for each in everyone:
        each.sync({one.member_id: one.member_id.encode()[:3] for one in everyone} if each is first else None)


def begin(broker: Subject) -> NotingProducer:
    """The producer of a scenario."""
    return NotingProducer(broker).init("init")


def state(broker: Subject, group: str) -> str:
    (seen,) = broker.client.ask(DescribeGroupsRequest(groups=[group], include_authorized_operations=False), 6).groups
    return f"{seen.group_state}, {len(seen.members)}"


def late(actor: NotingProducer, silent: ConnectedMember) -> None:
    """What a member is answered that wakes up."""
    broker = silent.broker
    broker.note("described", state=state(broker, silent.group))
    broker.note("late heartbeat", error=silent.beat())
    broker.note("late sync", error=silent.sync().error_code)
    broker.note("late commit", errors=commit_as(silent, actor.topic))
    mine = {"generation_id": silent.generation, "member_id": silent.member_id, "group_instance_id": silent.instance}
    for version in (5, 3):
        commit_in(actor, f"late commit in a transaction, v{version}", silent.group, 7, version, **mine)
    actor.end("end of that transaction", version=5)
    note_joined(broker, "late join", silent.client.ask(silent.request(), JOIN))
    broker.note("described in the end", state=state(broker, silent.group))


def the_only_member(actor: NotingProducer) -> Steps:
    broker = actor.broker
    silent = stable(broker, broker.name("group"), session_ms=_SESSION_MS)
    yield from until(lambda: state(broker, silent.group), lambda seen: seen == "Empty, 0")
    late(actor, silent)


def the_only_static_member(actor: NotingProducer) -> Steps:
    broker = actor.broker
    silent = stable(broker, broker.name("group"), session_ms=_SESSION_MS, instance="i")
    yield from until(lambda: state(broker, silent.group), lambda seen: seen == "Empty, 0")
    late(actor, silent)
    note_joined(broker, "its instance comes back", member(broker, silent.group, instance="i").ask())


def one_of_two(actor: NotingProducer, instance: str | None = None) -> Steps:
    broker, group = actor.broker, actor.broker.name("group")
    silent = member(broker, group, session_ms=_SESSION_MS, instance=instance)
    awake = member(broker, group)
    yield from two(silent, awake)
    assigned(silent, awake)
    seen = yield from until(awake.beat, lambda error: error != ErrorCode.NONE)
    broker.note("heartbeat of the other", error=seen)
    note_joined(broker, "the other joins again", awake.ask())
    late(actor, silent)
    broker.note("sync of the other", mine=awake.sync({awake.member_id: b"all"}).assignment)


def one_static_member_of_two(actor: NotingProducer) -> Steps:
    return one_of_two(actor, "i")


def one_that_does_not_join_again(actor: NotingProducer, instance: str | None = None) -> Steps:
    broker, group = actor.broker, actor.broker.name("group")
    times = {"rebalance_ms": _REBALANCE_MS}
    silent = stable(broker, group, instance=instance, **times)
    awake = member(broker, group, **times)
    yield from joined(awake, "the other", parked_join(awake))
    answer = awake.sync({awake.member_id: b"all"})
    broker.note("sync of the other", error=answer.error_code, mine=answer.assignment)
    late(actor, silent)


def a_static_one_that_does_not_join_again(actor: NotingProducer) -> Steps:
    return one_that_does_not_join_again(actor, "i")


def a_leader_that_does_not_assign(actor: NotingProducer, instance: str | None = None) -> Steps:
    broker, group = actor.broker, actor.broker.name("group")
    times = {"rebalance_ms": _REBALANCE_MS}
    silent = member(broker, group, instance=instance, **times)
    awake = member(broker, group, **times)
    yield from two(silent, awake)
    parked = Parked(awake, awake.sync_request(), SYNC)
    answer = yield from parked.answer()
    broker.note("sync of the other", error=answer.error_code, mine=answer.assignment)
    broker.note("heartbeat of the other", error=awake.beat())
    note_joined(broker, "the other joins again", awake.ask())
    late(actor, silent)


def a_static_leader_that_does_not_assign(actor: NotingProducer) -> Steps:
    return a_leader_that_does_not_assign(actor, "i")


def a_follower_that_does_not_sync(actor: NotingProducer, instance: str | None = None) -> Steps:
    broker, group = actor.broker, actor.broker.name("group")
    times = {"rebalance_ms": _REBALANCE_MS}
    awake = member(broker, group, **times)
    silent = member(broker, group, instance=instance, **times)
    yield from two(awake, silent)
    assigned(awake)
    broker.note("stable", state=state(broker, group))
    seen = yield from until(awake.beat, lambda error: error != ErrorCode.NONE)
    broker.note("heartbeat of the other", error=seen)
    note_joined(broker, "the other joins again", awake.ask())
    late(actor, silent)


def a_static_follower_that_does_not_sync(actor: NotingProducer) -> Steps:
    return a_follower_that_does_not_sync(actor, "i")


def one_that_got_an_id_alone(actor: NotingProducer) -> Steps:
    broker, group = actor.broker, actor.broker.name("group")
    awake = stable(broker, group)
    silent = member(broker, group, session_ms=_SESSION_MS)
    silent.ask()
    parked = Parked(awake, awake.request(), JOIN)
    yield from until(lambda: state(broker, group), lambda seen: seen == "PreparingRebalance, 1")
    yield from joined(awake, "the other", parked)
    late(actor, silent)


def one_whose_join_waits_longer_than_its_session(actor: NotingProducer) -> Steps:
    broker, group = actor.broker, actor.broker.name("group")
    times = {"rebalance_ms": _LONG_REBALANCE_MS}
    silent = stable(broker, group, **times)
    waiting = member(broker, group, session_ms=_SESSION_MS, **times)
    yield from joined(waiting, "joins", parked_join(waiting))
    answer = waiting.sync({waiting.member_id: b"all"})
    broker.note("syncs", error=answer.error_code, mine=answer.assignment)
    broker.note("heartbeats", errors=[ErrorCode(waiting.beat()), ErrorCode(silent.beat())])


@case
def in_each_phase(broker: Subject) -> None:
    run_together(
        broker,
        begin,
        (
            the_only_member,
            the_only_static_member,
            one_of_two,
            one_static_member_of_two,
            one_that_does_not_join_again,
            a_static_one_that_does_not_join_again,
            a_leader_that_does_not_assign,
            a_static_leader_that_does_not_assign,
            a_follower_that_does_not_sync,
            a_static_follower_that_does_not_sync,
            one_that_got_an_id_alone,
            one_whose_join_waits_longer_than_its_session,
        ),
    )
