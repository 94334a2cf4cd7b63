"""Members of consumer groups that fall silent, or give nothing up: of either protocol, static or not (KIP-848)."""

from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.conformance.cases.consumer_groups import member, new_topic, note
from tests.conformance.cases.migrating_groups import Classic, note_described
from tests.conformance.cases.transaction_offsets import commit_in
from tests.conformance.cases.transactions import NotingProducer
from tests.support.conformance.scenarios import Steps, run_together, until
from tests.support.conformance.subject import Subject
from tests.support.requests import admin_calls
from tests.support.requests.consumer_group_calls import ConsumerClient, describe
from tests.support.requests.group_calls import heartbeat
from tests.support.requests.offset_calls import commit

_GROUP = 32
_SESSION_MS = 6000
_REBALANCE_MS = 5000
_SIZE = 4
"""Partitions of each topic."""


def begin(broker: Subject) -> NotingProducer:
    """The producer of a scenario, with a topic of four partitions."""
    return NotingProducer(broker, topic=new_topic(broker, _SIZE)).init("init")


def began(actor: NotingProducer) -> tuple[Subject, str, str]:
    """The broker, the topic and the group of a scenario."""
    return actor.broker, actor.topic, actor.broker.name("group")


def set_times(consumer: ConsumerClient, session_ms: int, interval_ms: int) -> Steps:
    """Let each member of the group of ``consumer`` have these times with its next heartbeat, as ``consumer`` has."""
    own = {"consumer_session_timeout_ms": str(session_ms), "consumer_heartbeat_interval_ms": str(interval_ms)}
    admin_calls.set_config(consumer.client, _GROUP, consumer.group, **own)
    yield from until(lambda: consumer.beat().heartbeat_interval_ms, lambda seen: seen == interval_ms)


def silence(silent: ConsumerClient, awake: ConsumerClient | None = None) -> Steps:
    """Let the session of ``silent``, and no other, end soon."""
    yield from set_times(silent, 6000, 5500)
    if awake is not None:
        yield from set_times(awake, 45_000, 5000)


def share(topic: str, first: ConsumerClient, second: ConsumerClient) -> None:
    """Let each have a half."""
    first.join(topic)
    second.join(topic)
    for each in (first, second):
        each.settle(_SIZE // 2)
        each.beat()


def has_all(awake: ConsumerClient) -> Steps:
    """Send heartbeats until ``awake`` has every partition."""
    yield from until(lambda: awake.beat() and sum(map(len, awake.owned.values())), lambda count: count == _SIZE)


def late(actor: NotingProducer, silent: ConsumerClient) -> None:
    """What a member is answered that wakes up."""
    broker, epoch, mine = actor.broker, silent.epoch, {"member_id": silent.member_id}
    note_described(broker, "then", silent.group)
    note(broker, "late heartbeat", silent.say(epoch, owned=silent.owned))
    errors = commit(silent.client, silent.group, {(actor.topic, 0): 5}, generation_id_or_member_epoch=epoch, **mine)
    broker.note("late commit", errors=errors)
    in_transaction = {**mine, "generation_id": epoch, "group_instance_id": silent.instance_id}
    for version in (5, 3):
        commit_in(actor, f"late commit in a transaction, v{version}", silent.group, 7, version, **in_transaction)
    actor.end("end of that transaction", version=5)
    note(broker, "leaves late", silent.leave())


def the_only_member(actor: NotingProducer) -> Steps:
    broker, topic, group = began(actor)
    silent = member(broker, group)
    note(broker, "joins", silent.join(topic))
    yield from silence(silent)
    yield from until(lambda: describe(broker.client, group)[0].group_state, lambda seen: seen == "Empty")
    late(actor, silent)
    note(broker, "joins again", silent.join(topic))


def the_only_static_member(actor: NotingProducer) -> Steps:
    broker, topic, group = began(actor)
    silent, other = (member(broker, group, instance_id="i") for _ in range(2))
    note(broker, "joins", silent.join(topic))
    note(broker, "its instance elsewhere", other.join(topic))
    yield from silence(silent)
    answer = yield from until(lambda: other.join(topic), lambda seen: seen.error_code == ErrorCode.NONE)
    note(broker, "its instance elsewhere at last", answer)
    late(actor, silent)
    note(broker, "joins again", silent.join(topic))


def one_of_two(actor: NotingProducer, instance: str | None = None) -> Steps:
    broker, topic, group = began(actor)
    silent, awake = member(broker, group, instance_id=instance), member(broker, group)
    share(topic, silent, awake)
    yield from silence(silent, awake)
    yield from has_all(awake)
    broker.note("the other has all", epoch=awake.epoch)
    late(actor, silent)
    note(broker, "joins again", silent.join(topic))


def one_static_member_of_two(actor: NotingProducer) -> Steps:
    return one_of_two(actor, "i")


def a_static_one_that_left_for_a_while(actor: NotingProducer) -> Steps:
    broker, topic, group = began(actor)
    silent, awake = member(broker, group, instance_id="i"), member(broker, group)
    share(topic, silent, awake)
    yield from silence(silent, awake)
    note(broker, "leaves for a while", silent.leave(-2))
    yield from has_all(awake)
    broker.note("the other has all", epoch=awake.epoch)
    late(actor, silent)
    note(broker, "its instance comes back", member(broker, group, instance_id="i").join(topic))


def one_that_gives_nothing_up(actor: NotingProducer, is_silent: bool = False) -> Steps:
    broker, topic, group = began(actor)
    keeping, awake = member(broker, group), member(broker, group)
    keeping.join(topic, rebalance_timeout_ms=_REBALANCE_MS)
    everything = keeping.owned
    awake.join(topic)
    note(broker, "is asked to give a half up", keeping.beat())
    keeping.owned = everything
    if not is_silent:
        answer = yield from until(
            lambda: keeping.say(keeping.epoch, owned=everything), lambda seen: seen.error_code != ErrorCode.NONE
        )
        note(broker, "keeps all for too long", answer)
    yield from has_all(awake)
    broker.note("the other has all", epoch=awake.epoch)
    late(actor, keeping)


def one_that_falls_silent_when_it_is_to_give_up(actor: NotingProducer) -> Steps:
    return one_that_gives_nothing_up(actor, is_silent=True)


def with_classic(actor: NotingProducer, **times: int) -> tuple[ConsumerClient, Classic]:
    """A consumer, and a classic member that has joined its group and is to have a half."""
    broker, topic, group = began(actor)
    awake = member(broker, group)
    awake.join(topic)
    classic = Classic(broker, group, topic)
    classic.join("joins", **times)
    return awake, classic


def halve(awake: ConsumerClient) -> None:
    """Give a half up."""
    awake.settle(_SIZE // 2)
    awake.beat()


def beats(classic: Classic) -> Steps:
    """Send heartbeats until the member is unknown; note the answers, each once."""
    answers: list[ErrorCode] = []

    def beat() -> ErrorCode:
        answer = heartbeat(classic.client, classic.group, classic.generation, classic.member_id)
        if answer not in answers:
            answers.append(answer)
        return answer

    yield from until(beat, lambda error: error == ErrorCode.UNKNOWN_MEMBER_ID)
    classic.broker.note("its heartbeats", errors=answers)


def a_classic_one(actor: NotingProducer) -> Steps:
    awake, classic = with_classic(actor, session_timeout_ms=_SESSION_MS)
    halve(awake)
    classic.sync("syncs")
    yield from has_all(awake)
    classic.beat("late heartbeat")
    classic.sync("late sync")
    classic.join("late join")
    note_described(actor.broker, "in the end", awake.group)


def a_classic_one_that_does_not_join_again(actor: NotingProducer) -> Steps:
    awake, classic = with_classic(actor, rebalance_timeout_ms=_REBALANCE_MS)
    classic.sync("syncs")
    halve(awake)
    yield from beats(classic)
    yield from has_all(awake)
    note_described(actor.broker, "in the end", awake.group)


def a_classic_one_that_does_not_sync(actor: NotingProducer) -> Steps:
    awake, classic = with_classic(actor, rebalance_timeout_ms=_REBALANCE_MS)
    yield from beats(classic)
    yield from has_all(awake)
    note_described(actor.broker, "in the end", awake.group)


@case
def of_both_protocols(broker: Subject) -> None:
    run_together(
        broker,
        begin,
        (
            the_only_member,
            the_only_static_member,
            one_of_two,
            one_static_member_of_two,
            a_static_one_that_left_for_a_while,
            one_that_gives_nothing_up,
            one_that_falls_silent_when_it_is_to_give_up,
            a_classic_one,
            a_classic_one_that_does_not_join_again,
            a_classic_one_that_does_not_sync,
        ),
    )
