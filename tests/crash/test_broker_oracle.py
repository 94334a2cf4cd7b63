"""The oracle's negative control: it finds every kind of anomaly in a history that had none."""

from collections.abc import Callable

import pytest

from tests.support.crash.broker_history import Fate, Unit, anomalies

Record = tuple[int, bytes]


class World:
    """Two producers, two partitions, and what a sound broker has of them."""

    def __init__(self) -> None:
        self.units = [
            self.unit("a", Fate.COMMITTED, {0: {b"a1": 0, b"a2": 1}, 1: {b"a1'": 0}}),
            self.unit("b", Fate.ABORTED, {0: {b"b1": 3}, 1: {b"b1'": 2}}),
            self.unit("a", Fate.UNKNOWN, {0: {b"a3": 5}, 1: {b"a3'": 4}}),
            self.unit("b", Fate.OPEN, {1: {b"b2'": 6}}),
            self.unit("a", Fate.COMMITTED, {0: {b"a4": 7}}),
        ]
        self.log = {
            0: [(0, b"a1"), (1, b"a2"), (3, b"b1"), (5, b"a3"), (7, b"a4")],
            1: [(0, b"a1'"), (2, b"b1'"), (4, b"a3'"), (6, b"b2'")],
        }
        self.visible = {0: [b"a1", b"a2", b"a3", b"a4"], 1: [b"a1'", b"a3'"]}

    @staticmethod
    def unit(producer: str, fate: Fate, written: dict[int, dict[bytes, int]]) -> Unit:
        offsets = {(partition, value): at for partition, values in written.items() for value, at in values.items()}
        return Unit(producer, {partition: list(values) for partition, values in written.items()}, fate, offsets)

    def found(self) -> str:
        return "\n".join(anomalies(self.units, self.log, self.visible))


def test_a_sound_world_has_no_anomalies() -> None:
    assert World().found() == ""


def test_a_unit_of_unknown_fate_may_be_absent_as_a_whole() -> None:
    world = World()
    world.visible[0].remove(b"a3")
    world.visible[1].remove(b"a3'")
    assert world.found() == ""


def lose_from_the_log(world: World) -> None:
    world.log[0].remove((1, b"a2"))


def lose_an_aborted_record_from_the_log(world: World) -> None:
    world.log[0].remove((3, b"b1"))


def move(world: World) -> None:
    world.log[0][1] = (2, b"a2")


def hide(world: World) -> None:
    world.visible[0].remove(b"a2")


def hide_in_one_partition(world: World) -> None:
    world.visible[1].remove(b"a1'")


def store_twice(world: World) -> None:
    world.log[0].append((8, b"a2"))


def show_what_was_aborted(world: World) -> None:
    world.visible[0].append(b"b1")


def show_what_is_open(world: World) -> None:
    world.visible[1].append(b"b2'")


def show_half_of_the_unknown(world: World) -> None:
    world.visible[1].remove(b"a3'")


def swap(world: World) -> None:
    world.visible[0][:2] = [b"a2", b"a1"]


def swap_units(world: World) -> None:
    world.visible[0][2:] = [b"a4", b"a3"]


def invent(world: World) -> None:
    world.visible[1].append(b"nobody's")


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lose_from_the_log, "lost write"),
        (lose_an_aborted_record_from_the_log, "lost write"),
        (move, "lost write"),
        (hide, "lost write"),
        (hide_in_one_partition, "lost write"),
        (store_twice, "duplicate"),
        (show_what_was_aborted, "aborted read"),
        (show_what_is_open, "aborted read"),
        (show_half_of_the_unknown, "torn transaction"),
        (swap, "reordered"),
        (swap_units, "reordered"),
        (invent, "phantom"),
    ],
)
def test_every_anomaly_is_found_and_named(damage: Callable[[World], None], name: str) -> None:
    world = World()
    damage(world)
    assert world.found().startswith(name)
