"""docs/reference/states.md: the three state machines, each as a picture and as a table."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TypeVar

from drawing.machines import GROUP_BEGINS, TRANSACTION_BEGINS
from dualwrite.broker.core.groups import TRANSITIONS as GROUP_TRANSITIONS
from dualwrite.broker.core.transactions import TRANSITIONS as TRANSACTION_TRANSITIONS
from dualwrite.coordinator.rules.machine import STEPS, TRANSITIONS

_State = TypeVar("_State", bound=Enum)
GENERATED = "Written by `python docs/draw.py` from the code; a test compares."


def states_page() -> str:
    """The state machines."""
    return "\n".join(["# State machines", "", GENERATED, "", *_dual_write(), "", *_transactions(), "", *_groups(), ""])


def _dual_write() -> Iterator[str]:
    yield "## One dual write (`coordinator/rules/machine.py`)"
    yield ""
    yield "Below the name of a state is its step, which runs when the state is entered. An arrow's label is the result"
    yield "of that step. The column in the middle is a unit in which nothing fails."
    yield ""
    yield f"![{_DUAL_WRITE}](../pictures/dual-write.svg)"
    yield ""
    yield "| state | name | step | then |"
    yield "|---|---|---|---|"
    for state, outgoing in TRANSITIONS.items():
        step = f"`{STEPS[state].name}`" if state in STEPS else ""
        then = "; ".join(f"{event.name}: `{target.name}`" for event, target in outgoing.items())
        yield f"| `{state.name}` | {state.value} | {step} | {then or 'the end'} |"


_DUAL_WRITE = (
    "State machine of one dual write: from begin through prepare, the stored state and the database's commit to Kafka's"
    " commit; after a failure before the database's commit, both sides roll back"
)
_TRANSACTIONAL_ID = (
    "State machine of a transactional id: an open transaction is prepared, to commit or to abort, and complete when its"
    " markers are written"
)
_CLASSIC_GROUP = "State machine of a classic group: empty, preparing and completing a rebalance, stable, dead"


def _transactions() -> Iterator[str]:
    yield "## A transactional id in the broker (`broker/core/transactions.py`)"
    yield ""
    yield "An arrow's label is the cause of the transition. An arrow from the dashed box leaves each state in it."
    yield ""
    yield f"![{_TRANSACTIONAL_ID}](../pictures/transactional-id.svg)"
    yield ""
    yield from _causes(TRANSACTION_TRANSITIONS, TRANSACTION_BEGINS)


def _groups() -> Iterator[str]:
    yield "## A classic group (`broker/core/groups.py`)"
    yield ""
    yield "An arrow's label is the cause of the transition."
    yield ""
    yield f"![{_CLASSIC_GROUP}](../pictures/classic-group.svg)"
    yield ""
    yield from _causes(GROUP_TRANSITIONS, GROUP_BEGINS)


def _causes(table: Mapping[_State, Mapping[_State, str]], begin: str) -> Iterator[str]:
    yield "| from | to | cause |"
    yield "|---|---|---|"
    yield f"| the beginning | `EMPTY` | {begin} |"
    for target, sources in table.items():
        for source, cause in sources.items():
            yield f"| `{source.name}` | `{target.name}` | {cause} |"
