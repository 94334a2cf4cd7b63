"""kill -9 in the middle of a move: the next run goes on, and no record is missing or there twice."""

from pathlib import Path

import pytest

from tests.support.moving.dying_mover import COPY_STEPS, FINISH_STEPS
from tests.support.moving.killed_moves import KILLED, assert_moved, filled, kill_while_copying, kill_while_finishing
from tests.support.moving.move_site import MoveSite, commit_offset, rest_of

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("step", ["records acknowledged", "after commit"])
def test_a_mover_that_was_killed_goes_on(site: MoveSite, step: str) -> None:
    kill_while_copying(site, step, 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("step", COPY_STEPS)
def test_a_mover_that_was_killed_anywhere_goes_on(site: MoveSite, step: str, number: int) -> None:
    kill_while_copying(site, step, number)


@pytest.mark.slow
def test_a_mover_that_is_killed_again_and_again_comes_to_the_end(site: MoveSite) -> None:
    topics = filled(site, 3)  # so at least three transactions, of which each second death leaves one more
    for step in (*(["before commit", "after commit"] * len(topics)), "offsets sent"):
        code, said = site.run_and_die(step, 1, "--finish")
        assert code == KILLED, f"{step}: {said}"
    assert site.run("--finish", "--verify").code == 0
    assert_moved(site, topics)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "number"), [("offsets sent", 1), ("after commit", 1), ("offsets sent", 2)])
def test_a_mover_that_was_killed_between_two_groups_moves_both_later(site: MoveSite, step: str, number: int) -> None:
    (topic,) = filled(site, 1)
    commit_offset(site.source, "later", topic, 3)
    assert site.run().code == 0
    code, said = site.run_and_die(step, number, "--finish")
    assert code == KILLED, said
    assert not site.run("--dry-run", "--json").json()["finished"]
    commit_offset(site.source, "later", topic, 4)
    result = site.run("--finish", "--verify")
    assert (result.code, result.err) == (0, "")
    assert_moved(site, [topic])
    assert rest_of(site.target, "later", topic) == rest_of(site.source, "later", topic)
    assert site.run("--check").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("step", ["offsets sent", "before applications"])
def test_a_mover_that_was_killed_at_the_end_is_finished_later(site: MoveSite, tmp_path: Path, step: str) -> None:
    kill_while_finishing(site, f"sqlite:///{tmp_path / 'app.db'}", step)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begun", "records acknowledged", "before commit", "after commit", *FINISH_STEPS])
def test_a_mover_that_was_killed_anywhere_at_the_end_is_finished_later(
    site: MoveSite, tmp_path: Path, step: str
) -> None:
    kill_while_finishing(site, f"sqlite:///{tmp_path / 'app.db'}", step)
