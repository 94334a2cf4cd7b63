"""What the engine and the control plane both know of a cluster."""

from dualwrite.client.protocol.cluster_metadata import ClusterMetadata
from dualwrite.client.protocol.requests import GROUP, TRANSACTION, CoordinatorOf
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.wire.apis import APIS, ApiKey, Message

ONE, TWO, BOOTSTRAP = Endpoint("one", 1), Endpoint("two", 2), Endpoint("here", 9)


def answer(cluster_id: str | None, **nodes: Endpoint) -> Message:
    response = APIS[ApiKey.METADATA].response
    brokers = [
        response.MetadataResponseBroker(node_id=int(number[1:]), host=node.host, port=node.port, rack=None)
        for number, node in nodes.items()
    ]
    return response(throttle_time_ms=0, brokers=brokers, cluster_id=cluster_id, controller_id=1, topics=[])


def test_the_brokers_are_those_of_the_last_answer_and_bootstrap_comes_last() -> None:
    known = ClusterMetadata((BOOTSTRAP,))
    assert list(known.candidates()) == [BOOTSTRAP]
    known.learn_brokers(answer("c", n1=ONE, n2=TWO))
    assert (list(known.candidates()), known.cluster_id) == ([ONE, TWO, BOOTSTRAP], "c")
    known.learn_brokers(answer("", n2=TWO))
    assert (known.nodes, known.cluster_id) == ({2: TWO}, None)


def test_with_a_broker_its_coordinators_are_forgotten() -> None:
    known = ClusterMetadata((BOOTSTRAP,))
    lost, kept = CoordinatorOf(TRANSACTION, "a"), CoordinatorOf(GROUP, "a")
    known.coordinators.update({lost: ONE, kept: TWO})
    assert known.endpoints() == {ONE, TWO, BOOTSTRAP}
    known.forget_coordinators(ONE)
    assert known.coordinators == {kept: TWO}
