"""A client with few rights is answered by the bundled broker as by Apache Kafka 4.4.0 with its StandardAuthorizer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.api.routes import MODULES
from dualwrite.wire.apis import ApiKey
from tests.conformance.rights.recording import apache_kafka_with_rights, recorded
from tests.conformance.rights.requests import REQUESTS
from tests.conformance.rights.rounds import RIGHTS, SETTINGS, Answers, answers, by_round, rounds
from tests.support.forked import ForkedBroker

RECORDED = recorded()
_WITHOUT_A_RESOURCE = frozenset({ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS})
"""Asked in tests/broker: what they answer depends on the users of the cluster."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """The bundled broker's answers in every round."""
    config = {**SETTINGS, "group.initial.rebalance.delay.ms": "0"}
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=config) as broker:
        yield answers(broker.bootstrap_servers)


@pytest.mark.slow_cases
@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_client_with_few_rights_gets_apache_kafkas_answer(request_name: str, ours: Answers) -> None:
    seen, wanted = by_round(request_name, ours), by_round(request_name, RECORDED)
    assert {name: (seen[name], wanted[name]) for name in wanted if seen[name] != wanted[name]} == {}
    assert len(wanted) == len(list(rounds()))


@pytest.mark.parametrize("request_name", REQUESTS)
def test_some_client_is_answered_otherwise_than_another(request_name: str) -> None:
    """A request that everybody is answered alike would prove nothing."""
    assert len(RECORDED[request_name]) > 1


def test_every_right_in_the_documentation_is_asked_about() -> None:
    documented = {(need.operation, need.resource_type) for module in MODULES for need in module.NEEDS}
    assert documented <= set(RIGHTS)


def test_every_api_that_asks_for_a_right_is_asked() -> None:
    asked = {line.partition(" ")[0] for line in REQUESTS}
    named = {
        module.__doc__.partition(" ")[0] for module in MODULES if module.NEEDS and module.KEY not in _WITHOUT_A_RESOURCE
    }
    assert named <= asked


@pytest.mark.slow
@pytest.mark.jvm
def test_apache_kafka_still_answers_as_it_was_recorded(tmp_path: Path) -> None:
    with apache_kafka_with_rights(tmp_path) as servers:
        seen = answers(servers)
    assert {name: by_round(name, seen) for name in REQUESTS} == {name: by_round(name, RECORDED) for name in REQUESTS}
