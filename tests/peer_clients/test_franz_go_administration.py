"""kadm, franz-go's administrative client, about elections, replicas, quotas, features and settings of the broker."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.forked import ForkedBroker
from tests.support.peer_clients.go_module import GO_MODULE, what_is_missing
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.go]
LIMIT_SECONDS = 240

DONE = {"reassignment same", "directory own", "feature", "backoff"}
FOUND = {"elections of all": "0", "reassignments": "0", "quotas": "0", "log.cleaner.backoff.ms": "5000"}
REFUSED = {
    "election": "ELECTION_NOT_NEEDED",
    "reassignment other": "the replicas of each partition can only be [0], the one node",
    "reassignment cancelled": "NO_REASSIGNMENT_IN_PROGRESS",
    "directory other": "LOG_DIR_NOT_FOUND",
    "quota": "this broker enforces no quotas: producer_byte_rate",
    "lower": "INVALID_UPDATE_VERSION",
    "threads": "Cannot update these configs dynamically: num.io.threads",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the program was answered, by question."""
    missing = what_is_missing()
    if missing is not None:
        if "go" in os.environ.get("DUALWRITE_REQUIRE", "").split():
            pytest.fail(missing)
        pytest.skip(missing)
    program: Path = tmp_path_factory.mktemp("go") / "administration"
    building = ["go", "build", "-buildvcs=false", "-o", str(program), "./administration"]
    built = subprocess.run(building, cwd=GO_MODULE, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as broker, RawClient(broker.bootstrap_servers) as client:
        command = [str(program), "-brokers", broker.bootstrap_servers, "-topic", new_topic(client)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_question_has_an_expected_answer(answers: dict[str, str]) -> None:
    assert answers.keys() == DONE | FOUND.keys() | REFUSED.keys()
    assert {question for question, answer in answers.items() if answer == "done"} == DONE
    assert {question: answers[question] for question in FOUND} == FOUND


@pytest.mark.parametrize(("question", "words"), REFUSED.items())
def test_what_one_node_cannot_do_is_refused(answers: dict[str, str], question: str, words: str) -> None:
    assert words in answers[question]
