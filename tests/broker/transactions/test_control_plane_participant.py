"""Both participants against the bundled broker, through deaths: what recovery commits, and what it must not.

Every test ends with the same oracle: a read_committed consumer sees what the database decided, once.
"""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import FencedError, InvalidTransactionStateError, KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import OngoingTransaction, PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.frozen import freeze, thaw
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name, visible

Producer = LibrdkafkaProducer | NativeProducer
PRODUCERS: dict[str, type[Producer]] = {"librdkafka": LibrdkafkaProducer, "native": NativeProducer}
OTHER = {LibrdkafkaProducer: NativeProducer, NativeProducer: LibrdkafkaProducer}
PAIR_ALONE = "a comparison of producer ids and epochs alone, as KIP-939 has it for another client"


class ParticipantApplication:
    """A topic, a transactional id, and one participant at a time. Closing it stands for its death: it ends nothing.

    ``producer`` writes, ``recoverer`` recovers.
    """

    def __init__(self, broker: EmbeddedBroker, producer: type[Producer], partitions: int = 1) -> None:
        self.name = fresh_name()
        self.broker = broker
        self.producer = self.recoverer = producer
        self.in_database = PreparedTxnState()
        create_topic(broker.bootstrap_servers, self.name, partitions)

    def participant(self, *, recovering: bool = False, timeout: float = 30.0) -> Producer:
        config = {
            "bootstrap.servers": self.broker.bootstrap_servers,
            "transactional.id": self.name,
            "delivery.timeout.ms": int(timeout * 1000),
        }
        participant = (self.recoverer if recovering else self.producer)(config, timeout=timeout)
        participant.init_transactions(keep_prepared_txn=recovering)
        return participant

    def write(self, participant: Producer, *values: bytes, partition: int = 0) -> None:
        participant.begin_transaction()
        for value in values:
            participant.produce(OutgoingRecord(self.name, value, partition=partition))

    def decide(self, participant: Producer) -> None:
        """Prepare, and commit the database with the state."""
        self.in_database = participant.prepare_transaction()

    def recover(self) -> Outcome:
        """The action of a successor on a dead process's transaction."""
        participant = self.participant(recovering=True)
        try:
            return participant.complete_transaction(PreparedTxnState.parse(str(self.in_database)))
        finally:
            participant.close()

    def visible(self) -> list[bytes]:
        return visible(self.broker.bootstrap_servers, self.name)


@pytest.fixture(params=["native", pytest.param("librdkafka", marks=pytest.mark.slow)])
def producer(request: pytest.FixtureRequest) -> type[Producer]:
    return PRODUCERS[request.param]


@pytest.fixture
def application(shared_broker: EmbeddedBroker, producer: type[Producer]) -> ParticipantApplication:
    return ParticipantApplication(shared_broker, producer)


@pytest.fixture
def librdkafkas(shared_broker: EmbeddedBroker) -> ParticipantApplication:
    return ParticipantApplication(shared_broker, LibrdkafkaProducer)


def both_or_neither(application: ParticipantApplication, decided: list[bytes]) -> None:
    """The oracle: what a read_committed consumer sees is what the database decided, once."""
    assert application.visible() == decided


def test_a_unit_of_work_without_a_crash_is_visible_after_its_commit_and_not_before(
    application: ParticipantApplication,
) -> None:
    participant = application.participant()
    application.write(participant, b"a", b"b")
    application.decide(participant)
    both_or_neither(application, [])
    participant.commit_transaction()
    both_or_neither(application, [b"a", b"b"])
    participant.close()


def test_death_between_prepare_and_the_database_commit_aborts(application: ParticipantApplication) -> None:
    participant = application.participant()
    application.write(participant, b"a")
    participant.prepare_transaction()
    participant.close()
    assert application.recover() is Outcome.ABORTED
    both_or_neither(application, [])


def test_death_after_the_database_commit_commits(application: ParticipantApplication) -> None:
    participant = application.participant()
    application.write(participant, b"a")
    application.decide(participant)
    participant.close()
    assert application.recover() is Outcome.COMMITTED
    both_or_neither(application, [b"a"])


@pytest.mark.parametrize("recoveries", [2, 3])
def test_recovery_may_run_again(application: ParticipantApplication, recoveries: int) -> None:
    participant = application.participant()
    application.write(participant, b"a")
    application.decide(participant)
    participant.close()
    outcomes = [application.recover() for _ in range(recoveries)]
    assert outcomes == [Outcome.COMMITTED] + [Outcome.NOTHING] * (recoveries - 1)
    both_or_neither(application, [b"a"])


def test_a_recovery_that_died_half_way_is_taken_up_by_the_next(application: ParticipantApplication) -> None:
    participant = application.participant()
    application.write(participant, b"a")
    application.decide(participant)
    participant.close()
    for _ in range(2):
        application.participant(recovering=True).close()  # kept, and dead before the verdict
    assert application.recover() is Outcome.COMMITTED
    both_or_neither(application, [b"a"])


def next_unit_dies_unprepared(application: ParticipantApplication) -> Outcome:
    """Unit N is in both. Unit N+1 of the same session dies before the database has heard of it: librdkafka's has the
    same producer id and epoch, the native producer's the next epoch."""
    participant = application.participant()
    application.write(participant, b"N")
    application.decide(participant)
    participant.commit_transaction()
    application.write(participant, b"N+1")
    successor = participant.prepare_transaction()  # sent and acknowledged; the database never hears of it
    same = successor.producer == application.in_database.producer
    assert same is (application.producer is LibrdkafkaProducer)
    participant.close()
    return application.recover()


def compare_pair_alone(state: PreparedTxnState, ongoing: OngoingTransaction) -> bool:
    return bool(state) and state.producer == ongoing.producer


def test_the_next_transaction_of_a_session_is_not_mistaken_for_the_decided_one(
    application: ParticipantApplication,
) -> None:
    assert next_unit_dies_unprepared(application) is Outcome.ABORTED
    both_or_neither(application, [b"N"])


def test_negative_control_without_anchors_librdkafkas_wrong_transaction_is_committed(
    librdkafkas: ParticipantApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreparedTxnState, "identifies", compare_pair_alone)
    assert next_unit_dies_unprepared(librdkafkas) is Outcome.COMMITTED, PAIR_ALONE
    with pytest.raises(AssertionError):
        both_or_neither(librdkafkas, [b"N"])


def test_the_native_producers_state_is_the_pair_alone_and_librdkafkas_has_an_anchor(
    application: ParticipantApplication,
) -> None:
    participant = application.participant()
    application.write(participant, b"a")
    application.decide(participant)
    participant.commit_transaction()
    participant.close()
    assert (application.in_database.anchor is None) is (application.producer is NativeProducer)


def test_one_producer_recovers_transactions_that_the_other_prepared(application: ParticipantApplication) -> None:
    application.recoverer = OTHER[application.producer]
    participant = application.participant()
    application.write(participant, b"a")
    application.decide(participant)
    participant.close()
    assert [application.recover(), application.recover()] == [Outcome.COMMITTED, Outcome.NOTHING]
    both_or_neither(application, [b"a"])


def test_the_other_producer_does_not_mistake_the_next_transaction_for_the_decided_one(
    application: ParticipantApplication,
) -> None:
    application.recoverer = OTHER[application.producer]
    assert next_unit_dies_unprepared(application) is Outcome.ABORTED
    both_or_neither(application, [b"N"])


def test_each_producer_in_turn_recovers_its_predecessors_transaction(librdkafkas: ParticipantApplication) -> None:
    application, decided = librdkafkas, []
    for turn in range(4):
        application.producer = application.recoverer = [*PRODUCERS.values()][turn % 2]
        if turn:
            assert application.recover() is (Outcome.COMMITTED if turn % 2 else Outcome.ABORTED)
        participant = application.participant()
        application.write(participant, b"in both %d" % turn)
        application.decide(participant)
        participant.commit_transaction()
        application.write(participant, b"left %d" % turn)
        left = participant.prepare_transaction()
        application.in_database = left if turn % 2 == 0 else application.in_database
        decided += [b"in both %d" % turn] + [b"left %d" % turn] * (turn % 2 == 0)
        participant.close()
    assert application.recover() is Outcome.ABORTED
    both_or_neither(application, decided)


def test_the_next_transaction_is_recognised_in_other_partitions_too(
    shared_broker: EmbeddedBroker, producer: type[Producer]
) -> None:
    application = ParticipantApplication(shared_broker, producer, partitions=3)
    participant = application.participant()
    application.write(participant, b"N", partition=2)
    application.decide(participant)
    participant.commit_transaction()
    application.write(participant, b"N+1", partition=0)
    participant.prepare_transaction()
    participant.close()
    assert application.recover() is Outcome.ABORTED
    both_or_neither(application, [b"N"])


def test_an_aborted_unit_does_not_confuse_the_next(application: ParticipantApplication) -> None:
    participant = application.participant()
    application.write(participant, b"no")
    participant.abort_transaction()
    application.write(participant, b"yes")
    application.decide(participant)
    participant.close()
    assert application.recover() is Outcome.COMMITTED
    both_or_neither(application, [b"yes"])


def test_the_session_after_recovery_works(application: ParticipantApplication) -> None:
    participant = application.participant()
    application.write(participant, b"a")
    application.decide(participant)
    participant.close()
    successor = application.participant(recovering=True)
    assert successor.complete_transaction(application.in_database) is Outcome.COMMITTED
    successor.init_transactions()
    application.write(successor, b"b")
    application.decide(successor)
    successor.commit_transaction()
    successor.close()
    both_or_neither(application, [b"a", b"b"])


def test_recovery_fences_a_zombie_in_every_call(application: ParticipantApplication) -> None:
    zombie = application.participant()
    application.write(zombie, b"zombie")
    zombie.prepare_transaction()
    assert application.recover() is Outcome.ABORTED
    with pytest.raises(FencedError):
        zombie.commit_transaction()
    zombie.close()
    both_or_neither(application, [])


def test_a_zombie_that_was_fenced_before_it_prepared_cannot_prepare(application: ParticipantApplication) -> None:
    zombie = application.participant()
    application.write(zombie, b"zombie")
    successor = application.participant()
    with pytest.raises((FencedError, PrepareFailedError)):
        application.decide(zombie)
    zombie.close()
    successor.close()
    both_or_neither(application, [])


def test_many_records_in_many_partitions_are_prepared_as_one(
    shared_broker: EmbeddedBroker, producer: type[Producer]
) -> None:
    application = ParticipantApplication(shared_broker, producer, partitions=4)
    participant = application.participant()
    participant.begin_transaction()
    for number in range(2000):
        participant.produce(OutgoingRecord(application.name, b"%d" % number, partition=number % 4))
    application.decide(participant)
    participant.close()
    assert application.recover() is Outcome.COMMITTED
    assert sorted(application.visible()) == sorted(b"%d" % number for number in range(2000))


def test_the_verbs_are_those_of_kip_939(application: ParticipantApplication) -> None:
    participant = application.participant()
    with pytest.raises(InvalidTransactionStateError, match="begin_transaction"):
        participant.produce(OutgoingRecord(application.name, b"a"))
    application.write(participant, b"a")
    with pytest.raises(InvalidTransactionStateError, match="complete_transaction"):
        participant.complete_transaction(application.in_database)
    application.decide(participant)
    with pytest.raises(InvalidTransactionStateError, match="prepared"):
        participant.produce(OutgoingRecord(application.name, b"late"))
    participant.abort_transaction()
    participant.close()


def test_an_unreachable_broker_is_a_clear_error(producer: type[Producer]) -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "app-0", "delivery.timeout.ms": 500}
    for keep in (True, False):
        participant = producer(config, timeout=0.5)
        with pytest.raises(KafkaUnavailableError, match=r"app-0|127\.0\.0\.1:1"):
            participant.init_transactions(keep_prepared_txn=keep)
        participant.close()


def test_a_prepared_transaction_outlives_the_broker_that_holds_it(
    broker: EmbeddedBroker, producer: type[Producer]
) -> None:
    application = ParticipantApplication(broker, producer)
    participant = application.participant()
    application.write(participant, b"a", b"b")
    application.decide(participant)
    broker.kill()
    participant.close()
    broker.start()
    assert application.recover() is Outcome.COMMITTED
    both_or_neither(application, [b"a", b"b"])


@pytest.mark.slow
def test_a_broker_that_falls_silent_is_given_up_in_time_and_recovery_finds_the_outcome(
    broker: EmbeddedBroker, producer: type[Producer]
) -> None:
    application = ParticipantApplication(broker, producer)
    participant = application.participant(timeout=2.0)
    application.write(participant, b"a")
    application.decide(participant)
    assert broker.pid is not None
    freeze(broker.pid)
    try:
        with pytest.raises(KafkaUnavailableError, match=application.name):
            participant.commit_transaction()
        participant.close()
    finally:
        thaw(broker.pid)
    assert application.recover() in (Outcome.COMMITTED, Outcome.NOTHING)  # the late EndTxn may have arrived first
    both_or_neither(application, [b"a"])


FORKING = """
    import os, sys
    from dualwrite.coordinator.kafka.choice import ProducerChoice
    from dualwrite.errors import InvalidTransactionStateError
    from dualwrite.records.outgoing import OutgoingRecord

    bootstrap, name, kind = sys.argv[1:]
    config = {"bootstrap.servers": bootstrap, "transactional.id": name}
    participant = ProducerChoice(config, kind).participant(name)
    participant.init_transactions()
    participant.begin_transaction()
    participant.produce(OutgoingRecord(name, b"parent"))
    child = os.fork()
    if child == 0:
        try:
            participant.produce(OutgoingRecord(name, b"child"))
        except InvalidTransactionStateError as error:
            print(error, flush=True)
        participant.close()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    participant.prepare_transaction()
    participant.commit_transaction()
    participant.close()
"""


def run(script: str, application: ParticipantApplication) -> "subprocess.CompletedProcess[str]":
    (kind,) = (name for name, producer in PRODUCERS.items() if producer is application.producer)
    given = [application.broker.bootstrap_servers, application.name, kind]
    command = [sys.executable, "-c", textwrap.dedent(script), *given]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)


def test_a_forked_process_is_refused_and_leaves_its_parents_transaction_alone(
    application: ParticipantApplication,
) -> None:
    parent = run(FORKING, application)
    assert parent.returncode == 0
    assert "make a new one after a fork" in parent.stdout
    both_or_neither(application, [b"parent"])


DOOMED = """
    import os, signal, sys
    from dualwrite.coordinator.kafka.choice import ProducerChoice
    from dualwrite.records.outgoing import OutgoingRecord

    bootstrap, name, kind = sys.argv[1:]
    config = {"bootstrap.servers": bootstrap, "transactional.id": name}
    participant = ProducerChoice(config, kind).participant(name)
    participant.init_transactions()
    for unit in (b"N", b"N+1"):
        participant.begin_transaction()
        participant.produce(OutgoingRecord(name, unit, partition=0))
        print(participant.prepare_transaction(), flush=True)
        if unit == b"N":
            participant.commit_transaction()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("decided", "expected", "seen"),
    [
        (lambda states: states[0], Outcome.ABORTED, [b"N"]),
        (lambda states: states[1], Outcome.COMMITTED, [b"N", b"N+1"]),
    ],
)
def test_a_process_killed_with_sigkill_is_recovered_by_another(
    application: ParticipantApplication, decided: Callable[[list[str]], str], expected: Outcome, seen: list[bytes]
) -> None:
    doomed = run(DOOMED, application)
    assert doomed.returncode == -signal.SIGKILL
    states = doomed.stdout.split()
    assert len(set(states)) == 2
    application.in_database = PreparedTxnState.parse(decided(states))
    assert application.recover() is expected
    both_or_neither(application, seen)
