"""The same cases for the bundled broker and for Apache Kafka 4.4.0, answered alike but for the findings."""

import datetime

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.conformance.cases import CASES
from tests.conformance.findings import FINDINGS
from tests.conformance.recordings import recorded, run
from tests.support.apache_kafka.single_node import ApacheKafka

RECORDED = recorded()


def differences(seen: dict[str, str], wanted: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Where the two differ: step, and what each says."""
    steps = [*wanted, *(step for step in seen if step not in wanted)]
    pairs = {step: (seen.get(step, "no such step"), wanted.get(step, "no such step")) for step in steps}
    return {step: pair for step, pair in pairs.items() if pair[0] != pair[1]}


def expected(name: str) -> dict[str, str]:
    """What the bundled broker is to answer: what Apache Kafka did, but for the findings."""
    found = {step: finding.bundled for (case, step), finding in FINDINGS.items() if case == name}
    return {**RECORDED[name], **found}


@pytest.mark.parametrize("name", CASES)
def test_the_bundled_broker_answers_as_apache_kafka_did(name: str, shared_broker: EmbeddedBroker) -> None:
    assert differences(run(name, shared_broker.bootstrap_servers), expected(name)) == {}


@pytest.mark.slow
@pytest.mark.jvm
@pytest.mark.parametrize("name", CASES)
def test_apache_kafka_still_answers_as_it_was_recorded(name: str, apache_kafka: ApacheKafka) -> None:
    assert differences(run(name, apache_kafka.bootstrap_servers), RECORDED[name]) == {}


def test_every_recording_is_one_of_a_case() -> None:
    assert set(RECORDED) == set(CASES)


@pytest.mark.parametrize(("name", "step"), FINDINGS)
def test_every_finding_is_a_difference_with_a_day_and_a_reason(name: str, step: str) -> None:
    finding = FINDINGS[name, step]
    assert RECORDED[name][step] != finding.bundled
    assert datetime.date.fromisoformat(finding.found)
    assert len(finding.reason.split()) >= 4
