"""kill -9 in the middle of a move: the next run goes on, and no record is missing or there twice."""

from pathlib import Path

import pytest

from tests.support.moving.dying_mover import COPY_STEPS, FINISH_STEPS
from tests.support.moving.killed_moves import KILLED, assert_moved, filled, kill_while_copying, kill_while_finishing
from tests.support.moving.move_site import MoveSite

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


@pytest.mark.parametrize("step", ["offsets sent", "before applications"])
def test_a_mover_that_was_killed_at_the_end_is_finished_later(site: MoveSite, tmp_path: Path, step: str) -> None:
    kill_while_finishing(site, f"sqlite:///{tmp_path / 'app.db'}", step)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begun", "records acknowledged", "before commit", "after commit", *FINISH_STEPS])
def test_a_mover_that_was_killed_anywhere_at_the_end_is_finished_later(
    site: MoveSite, tmp_path: Path, step: str
) -> None:
    kill_while_finishing(site, f"sqlite:///{tmp_path / 'app.db'}", step)
