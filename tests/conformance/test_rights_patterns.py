"""Wildcards, prefixes, denials, hosts, principals, super users, and resources without ACLs, as Apache Kafka decides."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.rights.patterns import names, pattern_answers
from tests.conformance.rights.recording import apache_kafka_in, recorded_patterns
from tests.conformance.rights.requests import REQUESTS
from tests.conformance.rights.rounds import Answers, by_round
from tests.support.forked import ForkedBroker

RECORDED = recorded_patterns()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The bundled broker's answers in every round."""
    data_dir = tmp_path_factory.mktemp("patterns") / "broker"

    @contextmanager
    def start(settings: Mapping[str, str]) -> Iterator[str]:
        with ForkedBroker(data_dir, config={**settings, "group.initial.rebalance.delay.ms": "0"}) as broker:
            yield broker.bootstrap_servers

    return pattern_answers(start)


@pytest.mark.slow_cases
@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_client_under_any_pattern_gets_apache_kafkas_answer(request_name: str, ours: Answers) -> None:
    seen, wanted = by_round(request_name, ours), by_round(request_name, RECORDED)
    assert {name: (seen[name], wanted[name]) for name in wanted if seen[name] != wanted[name]} == {}
    assert set(seen) == set(wanted) == names()


@pytest.mark.parametrize("request_name", REQUESTS)
def test_some_round_is_answered_otherwise_than_another(request_name: str) -> None:
    """A request that is answered alike in every round would prove nothing."""
    assert len(RECORDED[request_name]) > 1


@pytest.mark.slow
@pytest.mark.jvm
def test_apache_kafka_still_answers_as_it_was_recorded(tmp_path: Path) -> None:
    seen = pattern_answers(apache_kafka_in(tmp_path / "kafka"))
    assert {name: by_round(name, seen) for name in REQUESTS} == {name: by_round(name, RECORDED) for name in REQUESTS}
