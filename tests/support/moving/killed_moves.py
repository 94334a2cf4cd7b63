"""Moves that are killed with SIGKILL at a step, and then run again."""

import signal

from sqlalchemy import insert

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.two_phase import TwoPhase
from tests.support.coordinator.event_table import events, ready_engine
from tests.support.moving.move_site import (
    Copied,
    MoveEnd,
    MoveSite,
    commit_offset,
    create_topic,
    fill,
    has_offset,
    offset_of,
    read,
    read_from,
    rest_of,
    topics_of,
)
from tests.support.peer_clients.kafka_helpers import quick

KILLED = -signal.SIGKILL
PARTITIONS = 2


def filled(site: MoveSite, topics: int = 2) -> list[str]:
    """Topics with records, and a group in each."""
    names = [create_topic(site.source, partitions=PARTITIONS) for _ in range(topics)]
    for name in names:
        fill(site.source, name, PARTITIONS)
        commit_offset(site.source, "group", name, 5)
    return names


def assert_moved(site: MoveSite, topics: list[str]) -> None:
    """Both sides have the same records, and the group goes on at the same one."""
    for topic in topics:
        assert read(site.target, topic, PARTITIONS) == read(site.source, topic, PARTITIONS)
        assert rest_of(site.target, "group", topic) == rest_of(site.source, "group", topic)


def kill_while_copying(site: MoveSite, step: str, number: int, *, names_topics: bool = False) -> None:
    """Kill the first run at a step; then finish.

    :param names_topics: move only the topics that are made here.
    """
    topics = filled(site)
    words = ("--topics", ",".join(topics)) if names_topics else ()
    code, said = site.run_and_die(step, number, *words)
    assert code == KILLED, said
    for topic in set(topics) & topics_of(site.target):
        for partition in range(PARTITIONS):
            there, here = (in_partition(cluster, topic, partition) for cluster in (site.target, site.source))
            assert there == here[: len(there)]
    result = site.run("--finish", "--verify", *words)
    assert (result.code, result.err) == (0, "")
    assert_moved(site, topics)


def in_partition(cluster: MoveEnd, topic: str, partition: int) -> list[Copied]:
    """The visible records of one partition."""
    return [record for _, record in read_from(cluster, {(topic, partition): 0})]


def kill_while_finishing(site: MoveSite, url: str, step: str, *, two_phase: TwoPhase = "keep-prepared") -> None:
    """Kill the last run at a step; then finish, and go on with the application at the target.

    :param two_phase: the application's mode at the target.
    """
    topics = filled(site, 1)
    engine = ready_engine(url)
    config = quick(site.source.bootstrap_servers)
    with DualWrite(engine, config, application="app") as dw, dw.transaction() as tx:
        tx.execute(insert(events), {"value": "a"})
        tx.produce(topics[0], value="unit", partition=1)
    words = ("--finish", "--db", url)
    assert site.run().code == 0
    code, said = site.run_and_die(step, 1, *words)
    assert code == KILLED, said
    if step in ("after commit", "before applications", "after applications"):
        assert offset_of(site.target, "group", topics[0]) is not None
    else:
        assert not has_offset(site.target, "group", topics[0])
    result = site.run(*words)
    assert (result.code, result.err) == (0, "")
    assert_moved(site, topics)
    target = quick(site.target.bootstrap_servers)
    with DualWrite(engine, target, application="app", two_phase=two_phase) as dw:
        assert not any(outcome.is_heuristic for outcome in dw.recover().values())
        with dw.transaction() as tx:
            tx.execute(insert(events), {"value": "b"})
            tx.produce(topics[0], value="unit", partition=1)
        assert list(dw.outcomes()) == []
    assert site.run("--check").code == 0
    engine.dispose()
