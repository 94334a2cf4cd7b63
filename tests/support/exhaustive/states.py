"""Breadth-first search over the states of a model, whose steps call the product's own pure functions.

A state is a value. Two states are one only if they are equal: the search keeps whole states, not their hashes. It goes
on layer by layer, so that the bound that it reports is exact: every history of so many steps was seen. What must
*always* hold is checked in each state, or asserted by a step; what must *sometimes* happen is counted, so that nothing
passes for want of events.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)

_LOOK_AT_THE_CLOCK = 256
"""States between two looks at the clock."""


class BrokenPropertyError(AssertionError):
    """What must always hold does not hold; the message has the shortest history that shows it."""


@dataclass(frozen=True)
class StateModel(Generic[State]):
    """A small world, to be searched.

    :param name: a short word.
    :param about: what it searches, in a line.
    :param first: the states in which a history begins.
    :param following: the steps from a state: what happens, and the state after it. It adds to the counter what a step
        has shown of ``sometimes``, and raises AssertionError if a step breaks one of ``asserted``.
    :param always: name -> whether it holds in a state.
    :param asserted: the names of what the steps assert.
    :param sometimes: name -> whether a state has it.
    :param events: the names of what steps must have shown.
    :param least: the depth that a search for some minutes reaches however long that takes. All of ``sometimes`` and
        ``events`` are met there, so that a busy machine does not pass for a model without events.
    """

    name: str
    about: str
    first: Sequence[State]
    following: Callable[[State, Counter[str]], Iterable[tuple[str, State]]]
    always: Mapping[str, Callable[[State], object]] = field(default_factory=dict)
    asserted: Sequence[str] = ()
    sometimes: Mapping[str, Callable[[State], object]] = field(default_factory=dict)
    events: Sequence[str] = ()
    least: int = 0


@dataclass
class Explored(Generic[State]):
    """What a search has seen.

    :param depth: every history of so many steps was seen.
    :param is_complete: there are no others: no step leads to a new state.
    :param origins: each state, and how it was first reached.
    :param seen: what the states and steps had of the sometimes-properties.
    :param final: states without a step.
    :param widest: the most new states of a layer.
    """

    depth: int = 0
    is_complete: bool = False
    origins: dict[State, tuple[State, str] | None] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    transitions: int = 0
    final: int = 0
    widest: int = 0
    states: int = 0
    seconds: float = 0.0

    def history(self, state: State) -> list[str]:
        """The shortest history that leads to ``state``."""
        steps: list[str] = []
        while (origin := self.origins[state]) is not None:
            state, step = origin
            steps.append(step)
        return [f"from {state}", *reversed(steps)]


def explore(
    model: StateModel[State], *, depth: float = inf, seconds: float = inf, most_states: float = inf
) -> Explored[State]:
    """Search ``model`` until no new state is left, or one of the bounds is reached.

    A layer is begun only if it can probably be finished within the bounds. One that was not finished is not reported.

    :raises BrokenPropertyError: if an always-property does not hold.
    """
    began = time.perf_counter()
    found: Explored[State] = Explored()
    layer = _Layer(model, found, began + seconds, most_states)
    for state in model.first:
        layer.reach(state, None)
    layer.finish()
    last = began
    while layer.frontier and found.depth < depth:
        now = time.perf_counter()
        is_due = found.depth < model.least
        if not is_due and not _has_room(found, layer, (now - last, began + seconds - now), most_states):
            break
        last = now
        if not layer.advance(is_due=is_due):
            break
        found.depth += 1
    found.is_complete = not layer.frontier
    found.seconds = time.perf_counter() - began
    return found


def _has_room(found: Explored[State], layer: "_Layer[State]", times: tuple[float, float], most_states: float) -> bool:
    """True if the next layer probably fits, if it grows as the last one did.

    :param times: the seconds of the last layer, and those that are left.
    """
    last, left = times
    growth = layer.growth
    return last * growth <= left and found.states + len(layer.frontier) * growth <= most_states


class _Layer(Generic[State]):
    """The states that are one step further than those before."""

    def __init__(self, model: StateModel[State], found: Explored[State], until: float, most_states: float) -> None:
        self.frontier: list[State] = []
        self.growth = 1.0
        self._model = model
        self._found = found
        self._until = until
        self._most = most_states
        self._new: list[State] = []
        self._seen: Counter[str] = Counter()

    def reach(self, state: State, origin: tuple[State, str] | None) -> None:
        """Note ``state`` if it is new, and check it."""
        origins = self._found.origins
        if state in origins:
            return
        origins[state] = origin
        self._new.append(state)
        for name, holds in self._model.always.items():
            if not holds(state):
                raise self._broken(name, state, "")
        for name, has in self._model.sometimes.items():
            if has(state):
                self._seen[name] += 1

    def advance(self, *, is_due: bool) -> bool:
        """Make the next layer; False if there was no room for it.

        :param is_due: it is made however long it takes.
        """
        transitions = final = 0
        for number, state in enumerate(self.frontier):
            if not is_due and number % _LOOK_AT_THE_CLOCK == 0 and self._is_out_of_room():
                return False
            before = transitions
            try:
                for step, following in self._model.following(state, self._seen):
                    transitions += 1
                    self.reach(following, (state, step))
            except BrokenPropertyError:
                raise
            except AssertionError as error:
                raise self._broken(str(error), state, " and one step more") from error
            final += transitions == before
        self._found.transitions += transitions
        self._found.final += final
        self.finish()
        return True

    def finish(self) -> None:
        """Report the layer."""
        self.growth = len(self._new) / max(len(self.frontier), 1)
        self.frontier, self._new = self._new, []
        self._found.states = len(self._found.origins)
        self._found.widest = max(self._found.widest, len(self.frontier))
        self._found.seen.update(self._seen)
        self._seen.clear()

    def _is_out_of_room(self) -> bool:
        return time.perf_counter() > self._until or len(self._found.origins) > self._most

    def _broken(self, what: str, state: State, more: str) -> BrokenPropertyError:
        history = self._found.history(state)
        steps = "\n".join(f"  {number:3} {step}" for number, step in enumerate(history))
        return BrokenPropertyError(
            f"{self._model.name}: {what}\nthe shortest history, of {len(history) - 1} steps{more}:\n{steps}\nin {state}"
        )
