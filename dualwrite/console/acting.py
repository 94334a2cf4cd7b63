"""The console's actions: each is planned first, which changes nothing, and carried out as it was planned.

The functions of ``operations`` do the work, as for ``dualwrite transactions``. All of these block.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dualwrite.console.commands import MOST_TARGETS, Commands
from dualwrite.console.looks import Place, is_wanted, require_answer
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome, acknowledge, outcomes, require_name
from dualwrite.errors import DualWriteError, InputError, InvalidTransactionStateError
from dualwrite.ids import ProducerIdentity
from dualwrite.operations.groups import grouped_forecasts
from dualwrite.operations.phrases import counted, printable
from dualwrite.operations.resolving import Intention, plan, resolve
from dualwrite.operations.terminating import contradicts, foresee, terminate
from dualwrite.operations.wording import (
    acknowledgement,
    described,
    is_to_end,
    plan_line,
    results,
    termination_meaning,
)

_LOG = logging.getLogger("dualwrite.console")


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """What an action would do.

    :param lines: for the operator, one for each target.
    :param warning: what the operator should know before; empty if there is nothing.
    :param command: the command line that does the same.
    :param is_possible: False if nothing would be done.
    :param producer: for terminate: the identity of the transaction that was seen.
    :param contradicts_decision: for terminate: True if the database had decided to commit it.
    """

    verb: str
    targets: tuple[str, ...]
    lines: tuple[str, ...]
    warning: str
    command: str
    is_possible: bool = True
    producer: ProducerIdentity | None = None
    contradicts_decision: bool = False


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What an action has done.

    :param is_bad: True if something is still to be done, or a heuristic outcome was found or made.
    """

    lines: tuple[str, ...]
    is_bad: bool = False


class ActionDesk:
    """Plans actions and carries them out."""

    def __init__(self, place: Place, commands: Commands) -> None:
        self._place = place
        self._commands = commands
        self._planners: Mapping[str, Callable[[tuple[str, ...]], ActionPlan]] = {
            "resolve": self._plan_resolve,
            "terminate": self._plan_terminate,
            "acknowledge": self._plan_acknowledge,
        }
        self._runners: Mapping[str, Callable[[ActionPlan, str], ActionResult]] = {
            "resolve": self._resolve,
            "terminate": self._terminate,
            "acknowledge": self._acknowledge,
        }

    def plan(self, verb: str, targets: Sequence[str]) -> ActionPlan:
        """What ``verb`` would do with ``targets``. Changes nothing.

        :raises InputError: for an unknown verb or target, or one of another application than the console's.
        :raises DualWriteError: if the action is refused, or a side does not answer; also SQLAlchemyError.
        """
        chosen = tuple(dict.fromkeys(targets))
        if verb not in self._planners:
            raise InputError(f"there is no action {verb!r:.40}")
        if not 0 < len(chosen) <= MOST_TARGETS:
            raise InputError(f"{counted(len(chosen), 'target')} of {verb}: choose 1 to {MOST_TARGETS}")
        return self._planners[verb](chosen)

    def run(self, planned: ActionPlan, by: str) -> ActionResult:
        """Carry out ``planned`` as far as it still applies.

        :param by: the operator's name.
        :raises InputError: if ``by`` is not a name.
        :raises DualWriteError: as :meth:`plan`; also if what was planned is not there any more.
        """
        require_name(by, f"{planned.verb} by")
        _LOG.info("%s by %s: %s", planned.verb, by, printable(", ".join(planned.targets)))
        result = self._runners[planned.verb](planned, by)
        for line in result.lines:
            _LOG.info("%s by %s: %s", planned.verb, by, printable(line))
        return result

    def _plan_resolve(self, names: tuple[str, ...]) -> ActionPlan:
        intentions = self._intentions(names)
        foretold = grouped_forecasts(intention.view for intention in intentions)
        return ActionPlan(
            "resolve",
            names,
            tuple(map(plan_line, intentions)),
            "Recovery would find the two sides different, and put that on record." if foretold else "",
            self._commands.resolve(names),
            is_possible=any(not intention.obstacle and intention.view.is_recoverable for intention in intentions),
        )

    def _resolve(self, planned: ActionPlan, by: str) -> ActionResult:
        intentions = self._intentions(planned.targets)
        done = resolve(self._place.engine, self._place.kafka, intentions, two_phase=self._place.two_phase)
        left = [intention for intention in intentions if intention.obstacle]
        lines = (
            *results(done.outcomes),
            *map(plan_line, left),
            *(f"{name}: not resolved" for name in done.missed),
            *(" ".join(str(error).split()) for error in done.errors),
        )
        ended = sum(is_to_end(intention) for intention in intentions)
        return ActionResult(lines or (f"{counted(ended, 'transaction')} ended",), done.is_bad or bool(left))

    def _plan_terminate(self, names: tuple[str, ...]) -> ActionPlan:
        if len(names) != 1:
            raise InputError("terminate: choose one transactional id")
        (name,) = self._required(names)
        require_answer(self._place.kafka)
        view = foresee(self._place.engine, self._place.kafka, name)
        assert view.kafka is not None
        is_against = contradicts(view)
        instead = " Resolving would commit it instead." if is_against else ""
        return ActionPlan(
            "terminate",
            names,
            (f"{name}: would ABORT {described(view)}, regardless of the decision",),
            f"{termination_meaning(view, self._place.engine)}{instead}",
            self._commands.terminate(name),
            producer=view.kafka.producer,
            contradicts_decision=is_against,
        )

    def _terminate(self, planned: ActionPlan, by: str) -> ActionResult:
        again = self._plan_terminate(planned.targets)
        if (again.producer, again.contradicts_decision) != (planned.producer, planned.contradicts_decision):
            raise InvalidTransactionStateError(
                f"{planned.targets[0]}: nothing was done: it is not the transaction that was shown any more, or the "
                "database has decided on it meanwhile: look again"
            )
        view = terminate(self._place.engine, self._place.kafka, planned.targets[0], by=by)
        meaning = termination_meaning(view, self._place.engine)
        return ActionResult((f"{planned.targets[0]}: aborted {described(view)}. {meaning}",), contradicts(view))

    def _plan_acknowledge(self, numbers: tuple[str, ...]) -> ActionPlan:
        found = self._waiting(numbers)
        return ActionPlan(
            "acknowledge",
            numbers,
            tuple(map(_shown, found)),
            "This records that you have corrected one of the two sides. It corrects nothing itself.",
            self._commands.acknowledge([each.id for each in found]),
        )

    def _acknowledge(self, planned: ActionPlan, by: str) -> ActionResult:
        done: list[str] = []
        for number in planned.targets:
            try:
                done.append(acknowledgement(acknowledge(self._place.engine, int(number), by=by)))
            except DualWriteError as error:
                return ActionResult((*done, f"{number}: not acknowledged: {error}"), is_bad=True)
        return ActionResult(tuple(done))

    def _intentions(self, names: tuple[str, ...]) -> list[Intention]:
        require_answer(self._place.kafka)
        return plan(self._place.engine, self._place.kafka, transactional_ids=self._required(names))

    def _required(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Require that ``names`` are of the console's application."""
        for name in names:
            if not is_wanted(self._place.application, name):
                raise InputError(f"{name}: this console is for the application {self._place.application}")
        return names

    def _waiting(self, numbers: tuple[str, ...]) -> list[HeuristicOutcome]:
        """The outcomes with ``numbers``, which are not acknowledged.

        :raises InputError: if there is no such outcome, or it was acknowledged.
        """
        waiting = {str(each.id): each for each in outcomes(self._place.engine, self._place.application)}
        missing = [number for number in numbers if number not in waiting]
        if missing:
            raise InputError(f"no outcome {missing[0]:.40} waits to be acknowledged")
        return [waiting[number] for number in numbers]


def _shown(outcome: HeuristicOutcome) -> str:
    return f"{outcome.outcome.value} {outcome.id} of {outcome.transactional_id}, {outcome.state}: {outcome.detail}"
