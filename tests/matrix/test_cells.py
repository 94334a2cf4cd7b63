"""The matrix has every value of every axis, and a reason for each combination that it lacks."""

from collections import Counter

import pytest

from tests.matrix.__main__ import chosen
from tests.matrix.cells import DATABASES, SHAPES, Arrangement, Cell, FaultKind, Mode, Victim, all_cells, is_there
from tests.matrix.places import Access, PlaceKey
from tests.support.crash.kills import PRODUCERS, RECOVERY_STEPS, STEPS

CELLS = list(all_cells())


def test_every_value_of_every_axis_has_cells() -> None:
    assert {cell.victim for cell in CELLS} == set(Victim)
    assert {cell.kind for cell in CELLS} == set(FaultKind)
    assert {cell.mode for cell in CELLS} == set(Mode)
    assert {cell.arrangement for cell in CELLS} == set(Arrangement)
    assert {cell.database for cell in CELLS} == set(DATABASES)
    assert {cell.producer for cell in CELLS} == set(PRODUCERS)
    assert {cell.step for cell in CELLS} >= {*STEPS, *RECOVERY_STEPS}


def test_each_cell_occurs_once() -> None:
    assert [cell for cell, count in Counter(CELLS).items() if count > 1] == []


def test_every_victim_dies_at_every_step_of_a_unit_on_every_database_under_both_producers_in_every_mode() -> None:
    alone = [cell for cell in CELLS if cell.arrangement is Arrangement.ALONE and cell.kind is FaultKind.SIGKILL]
    dying = {(cell.victim, cell.step, cell.database, cell.producer, cell.mode) for cell in alone}
    of_server = {Victim.DATABASE, Victim.APPLICATION_AND_DATABASE}
    wanted = {
        (victim, step, database, producer, mode)
        for victim in Victim
        for step in STEPS
        for database in DATABASES
        for producer in PRODUCERS
        for mode in Mode
        if database != "sqlite" or victim not in of_server
    }
    assert wanted <= dying


@pytest.mark.parametrize(
    ("victim", "kind", "database", "mode", "there"),
    [
        (Victim.DATABASE, FaultKind.SIGKILL, "sqlite", Mode.KEEP_PREPARED, False),
        (Victim.DATABASE, FaultKind.CUT, "mariadb", Mode.RESUME_ON_KAFKA, True),
        (Victim.DATABASE, FaultKind.FULL_DISK, "postgresql", Mode.RESUME, False),
        (Victim.DATABASE, FaultKind.FULL_DISK, "sqlite", Mode.RESUME, True),
        (Victim.BROKER, FaultKind.POWER_CUT, "sqlite", Mode.RESUME_ON_KAFKA, False),
        (Victim.BROKER, FaultKind.POWER_CUT, "sqlite", Mode.KEEP_PREPARED, True),
        (Victim.APPLICATION, FaultKind.SIGKILL_AND_TIMEOUT, "sqlite", Mode.KEEP_PREPARED, False),
        (Victim.WORKER, FaultKind.SIGSTOP, "mariadb", Mode.KEEP_PREPARED, False),
        (Victim.WORKER, FaultKind.SIGSTOP, "postgresql", Mode.KEEP_PREPARED, True),
    ],
)
def test_a_combination_is_there_or_not(victim: Victim, kind: FaultKind, database: str, mode: Mode, there: bool) -> None:
    assert is_there(Cell("STORE_STATE", victim, kind, database, "native", mode)) is there


def test_each_shape_has_cells() -> None:
    assert {(victim, kind) for victim, kind, _ in SHAPES} == {(cell.victim, cell.kind) for cell in CELLS}


def test_cells_of_one_kind_of_access_share_a_place() -> None:
    keys = {PlaceKey.of(cell) for cell in CELLS}
    cut = {key for key in keys if key.access is Access.BY_CUTTERS}
    assert {key.name for key in cut} >= {"sqlite_native_keep_prepared_by_cutters_alone"}
    assert len(keys) < len(CELLS) / 15


def test_cells_are_chosen_by_their_values() -> None:
    found = chosen(["database=sqlite", "kind=SIGKILL", "victim=broker|application"])
    assert {(cell.database, cell.kind) for cell in found} == {("sqlite", FaultKind.SIGKILL)}
    assert {cell.victim for cell in found} == {Victim.BROKER, Victim.APPLICATION}
    assert chosen(["database=oracle"]) == []
