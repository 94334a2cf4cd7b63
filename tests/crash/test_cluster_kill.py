"""Leaders and coordinators of a real Apache Kafka killed in the middle of transactions: nothing is lost, twice or torn.

Everything on one cluster of three: what was committed is there once and whole, what was aborted never, and what was in
doubt is one of the two as soon as the next session has begun. The control group breaks the protocol on purpose.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey
from tests.support.apache_kafka.cluster import KafkaCluster
from tests.support.client.forgetful import forgetful
from tests.support.crash.broker_history import Fate
from tests.support.crash.cluster_experiment import Event, Experiment, Kill
from tests.support.crash.cluster_offsets import LIBRDKAFKA, OFFSETS, OffsetWorker
from tests.support.crash.cluster_producers import (
    HASTE_SECONDS,
    PROGRESS_SECONDS,
    ClusterWorker,
    Decision,
    Make,
    Step,
    asynchronous,
    librdkafka,
    native,
)
from tests.support.crash.raw_participant import Believing, Doubting, RawParticipant, Resending, Tearing, raw
from tests.support.crash.wire_tap import Fault, Lost, Tap, nothing

pytestmark = [pytest.mark.slow, pytest.mark.jvm, pytest.mark.crash]

KILLS = [
    Kill(ApiKey.PRODUCE, Lost.REQUEST),
    Kill(ApiKey.PRODUCE, Lost.ANSWER),
    Kill(ApiKey.END_TXN, Lost.REQUEST),
    Kill(ApiKey.END_TXN, Lost.ANSWER),  # the decision is in the coordinator's log, and a marker perhaps nowhere
    Kill(ApiKey.END_TXN, Lost.ANSWER, asked=False),  # a leader that a marker is on its way to
    Kill(ApiKey.INIT_PRODUCER_ID, Lost.ANSWER),
]


class World(NamedTuple):
    """The cluster, and the tap that clients reach it through."""

    cluster: KafkaCluster
    tap: Tap


@pytest.fixture(scope="module")
def one_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster for all of these tests."""
    tap = Tap(1, 2, 3)
    cluster = KafkaCluster(tmp_path_factory.mktemp("cluster"), told=tap.ports)
    with tap.start(cluster.ports), cluster:
        yield World(cluster, tap)


@pytest.fixture
def world(one_world: World) -> World:
    """The cluster, whole and in sync even after a test that failed while a node was dead."""
    one_world.cluster.restart_dead()
    return one_world


@pytest.mark.parametrize("seed", [1])
def test_acknowledged_records_survive_kills_of_leaders_and_coordinators(world: World, seed: int) -> None:
    cluster, tap = world
    makes = {
        LIBRDKAFKA: librdkafka(cluster.bootstrap_servers),
        "native": native(cluster.bootstrap_servers),
        "asynchronous": asynchronous(cluster.bootstrap_servers),
        "hasty": native(cluster.bootstrap_servers, HASTE_SECONDS),
    }
    experiment = Experiment(cluster, tap, makes, seed, OffsetWorker)
    patient = [name for name in makes if name != "hasty"]
    with_groups = [name for name in patient if name != LIBRDKAFKA]
    with experiment.running():
        for name in patient:
            for api in (ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID):
                for lost in Lost:
                    experiment.loses(name, api, lost)
        for name in with_groups:
            for lost in Lost:
                experiment.loses(name, ApiKey.TXN_OFFSET_COMMIT, lost)
        experiment.moves_a_leader_at(Step.PRODUCED)
        experiment.moves_a_leader_at(Step.PREPARED)
        for index, kill in enumerate(random.Random(seed).sample(KILLS, len(KILLS))):
            experiment.kills(patient[index % len(patient)], kill)
        experiment.kills("native", Kill(ApiKey.TXN_OFFSET_COMMIT, Lost.ANSWER))
        for lost in Lost:
            experiment.kills("hasty", Kill(ApiKey.END_TXN, lost))
        experiment.kills_a_leader_at(Step.PREPARED)
        experiment.kills_the_coordinator_at(Step.PREPARED)
        experiment.kills_the_controller_at(Step.PREPARED)

    assert experiment.judge() == []
    assert set(+experiment.happened) == set(Event)
    for name in patient:
        assert tap.repeated[name, ApiKey.PRODUCE] > 0, f"{name} has sent no batch again"
        assert tap.repeated[name, ApiKey.END_TXN] > 0, f"{name} has sent no EndTxn again"
    for name in with_groups:
        assert any(unit.producer == name and OFFSETS in unit.writes for unit in experiment.history.units)
        assert tap.repeated[name, ApiKey.TXN_OFFSET_COMMIT] > 0, f"{name} has sent no offset again"
    fates = experiment.history.fates()
    assert fates[Fate.UNKNOWN] > 0, "nobody was ever in doubt"
    assert fates[Fate.COMMITTED] > 100, fates
    assert fates[Fate.ABORTED] > 20, fates


class Committing(ClusterWorker):
    """Commits every unit, which is in two partitions."""

    def decides(self) -> Decision:
        return Decision.COMMIT

    def some_places(self) -> list[TopicPartition]:
        return self.chance.sample(self._places, 2)


class Denying(Committing):
    """Broken: says that a unit in doubt was aborted."""

    doubt = Fate.ABORTED


class Control(NamedTuple):
    """One loss at one moment, and who meets it."""

    step: Step
    api: ApiKey
    lost: Lost
    kind: type[RawParticipant] = RawParticipant
    worker: type[ClusterWorker] = Committing
    anomaly: str = ""


@pytest.mark.parametrize(
    "control",
    [
        Control(Step.PRODUCED, ApiKey.PRODUCE, Lost.ANSWER, RawParticipant),
        Control(Step.PRODUCED, ApiKey.PRODUCE, Lost.ANSWER, Resending, anomaly="duplicate"),
        Control(Step.PREPARED, ApiKey.END_TXN, Lost.REQUEST, RawParticipant),
        Control(Step.PREPARED, ApiKey.END_TXN, Lost.REQUEST, Believing, anomaly="lost write"),
        Control(Step.PREPARED, ApiKey.END_TXN, Lost.ANSWER, Doubting),
        Control(Step.PREPARED, ApiKey.END_TXN, Lost.ANSWER, Doubting, Denying, anomaly="aborted read"),
        Control(Step.PREPARED, ApiKey.END_TXN, Lost.REQUEST, Tearing, anomaly="torn transaction"),
    ],
    ids=lambda control: f"{control.kind.__name__}-{control.worker.__name__}-{control.lost.value}",
)
def test_the_same_loss_harms_only_participants_that_break_the_protocol(world: World, control: Control) -> None:
    name = f"{control.kind.__name__}-{control.worker.__name__}"
    found = found_after(world, name, raw(world.cluster, world.tap.ports, control.kind), control)
    assert bool(found) == bool(control.anomaly), found
    assert all(anomaly.startswith(control.anomaly) for anomaly in found), found


def test_a_native_producer_that_forgets_a_sequence_is_found_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordAccumulator, "send_again", forgetful)
    control = Control(Step.PRODUCED, ApiKey.PRODUCE, Lost.ANSWER)
    found = found_after(world, "forgetful", native(world.cluster.bootstrap_servers), control)
    assert found
    assert all(anomaly.startswith("duplicate") for anomaly in found), found


def found_after(world: World, name: str, make: Make, control: Control) -> list[str]:
    """The anomalies after the one loss of ``control``."""
    experiment = Experiment(world.cluster, world.tap, {name: make}, worker=control.worker)
    with experiment.running():
        with experiment.stage.holding(control.step):
            fault = world.tap.arm(Fault(control.api, control.lost, name, nothing))
        fault.wait(PROGRESS_SECONDS)
        experiment.everybody_gets_on()
    return experiment.judge()
