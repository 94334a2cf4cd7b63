"""DescribeTransactions, ListTransactions, DescribeProducers and FindCoordinator."""

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
    Message,
)
from tests.conformance.cases import case
from tests.conformance.cases.transactions import TV1, TV2, Actor
from tests.support.conformance.subject import Subject


@case
def several_transactional_ids_described(broker: Subject) -> None:
    actor = Actor(broker).begin(TV2)
    names = [actor.name, broker.name("tx"), ""]
    for state in broker.client.ask(DescribeTransactionsRequest(transactional_ids=names), 0).transaction_states:
        broker.note(broker.show(state.transactional_id), error=state.error_code, state=state.transaction_state)
    answer = broker.client.ask(DescribeTransactionsRequest(transactional_ids=[]), 0)
    broker.note("none", states=len(answer.transaction_states))


@case
def transactions_listed(broker: Subject) -> None:
    client = broker.client
    opened = Actor(broker).begin(TV2)
    ended = Actor(broker)
    ended.init("to end: init")
    ended.send("to end: produce", TV2)
    ended.end("to end: end", version=5)
    idle = Actor(broker).init("idle: init")
    mine = {opened.name, ended.name, idle.name}
    pattern = "|".join(mine)
    for step, (version, fields) in {
        "all": (0, {}),
        "ongoing": (0, {"state_filters": ["Ongoing"]}),
        "two states": (0, {"state_filters": ["Ongoing", "CompleteCommit"]}),
        "an unknown state": (0, {"state_filters": ["Sleeping"]}),
        "an unknown state and one": (0, {"state_filters": ["Ongoing", "Sleeping"]}),
        "another case": (0, {"state_filters": ["ongoing"]}),
        "one producer": (0, {"producer_id_filters": [opened.identity.producer_id]}),
        "no such producer": (0, {"producer_id_filters": [987654321]}),
        "at least no time": (1, {"duration_filter": 0}),
        "at least an hour": (1, {"duration_filter": 3_600_000}),
        "without a bound": (1, {"duration_filter": -1}),
        "a pattern": (2, {"transactional_id_pattern": pattern}),
        "half a name": (2, {"transactional_id_pattern": opened.name[:-1]}),
        "an empty pattern": (2, {"transactional_id_pattern": ""}),
        "no pattern at all": (2, {"transactional_id_pattern": "("}),
    }.items():
        fields = {"state_filters": [], "producer_id_filters": [], **fields}
        answer = client.ask(ListTransactionsRequest(**fields), version)
        states = {state.transactional_id: state for state in answer.transaction_states}
        broker.note(
            step,
            error=answer.error_code,
            unknown=sorted(answer.unknown_state_filters or []),
            states=[(name, states[name].transaction_state) for name in sorted(mine) if name in states],
        )


@case
def producers_of_a_partition(broker: Subject) -> None:
    actor = Actor(broker)
    topic = actor.topic

    def look(step: str) -> None:
        answer = _producers(broker, topic, 0)
        broker.note(
            step,
            error=answer.error_code,
            producers=[
                (
                    ProducerIdentity(state.producer_id, state.producer_epoch),
                    state.last_sequence,
                    broker.moment(state.last_timestamp),
                    state.coordinator_epoch,
                    state.current_txn_start_offset,
                )
                for state in answer.active_producers
            ],
        )

    look("nobody")
    actor.init("init")
    actor.add("add", (topic, 0))
    look("added")
    actor.send("produce", TV1)
    look("open")
    actor.end("commit")
    look("committed")
    actor.send("TV2", TV2)
    actor.send("TV2 more", TV2)
    look("open again")
    actor.end("abort", False, 5)
    look("aborted")


@case
def producers_of_unknown_partitions(broker: Subject) -> None:
    topic = broker.topic()
    places = {"partition": (topic, 3), "topic": ("no-such-topic", 0), "bad name": ("a topic", 0)}
    for step, (name, index) in places.items():
        broker.note(step, error=_producers(broker, name, index).error_code)


def _producers(broker: Subject, topic: str, partition: int) -> Message:
    entry = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
    ((answer,),) = [seen.partitions for seen in broker.client.ask(DescribeProducersRequest(topics=[entry]), 0).topics]
    return answer


@case
def coordinators(broker: Subject) -> None:
    for version in range(7):
        for kind in (0, 1, 2, 3):
            if version == 0 and kind:
                continue
            for key in (broker.name("key"), ""):
                request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
                answer = broker.client.ask(request, version)
                seen = answer.coordinators[0] if version >= 4 else answer
                broker.note(f"v{version}, kind {kind}, {broker.show(key)}", error=seen.error_code, found=seen.port > 0)
