"""``python -m tests.support.moving.dying_mover STEP NUMBER VERB …``: the command, killed with SIGKILL by itself at the
``NUMBER``-th time that it comes to ``STEP``."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

import dualwrite.moving.move as move
import dualwrite.moving.target_writer as target_writer
from dualwrite.cli.main import main
from dualwrite.moving.cluster_admin import MoveAdmin

COPY_STEPS = ("topic created", "begun", "records acknowledged", "before commit", "after commit")
FINISH_STEPS = ("offsets sent", "before applications", "after applications")


class DeathCount:
    """Counts how often the command comes to ``step``."""

    def __init__(self, step: str, number: int) -> None:
        self._step = step
        self._left = number

    def come_to(self, step: str) -> None:
        """Die if this is the chosen moment."""
        if step == self._step:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def dying(strikes: DeathCount) -> type[Producer]:
    """A producer that dies at a step."""

    class DyingProducer(Producer):
        def begin_transaction(self, *arguments: Any) -> None:
            super().begin_transaction(*arguments)
            strikes.come_to("begun")

        def flush(self, *arguments: Any, **options: Any) -> int:
            left = super().flush(*arguments, **options)
            strikes.come_to("records acknowledged")
            return left

        def commit_transaction(self, *arguments: Any) -> None:
            strikes.come_to("before commit")
            super().commit_transaction(*arguments)
            strikes.come_to("after commit")

    return DyingProducer


def around(strikes: DeathCount, before: str, function: Callable[..., Any], after: str) -> Callable[..., Any]:
    """``function``, with a step before it and one after it."""

    def wrapped(*arguments: Any, **options: Any) -> Any:
        strikes.come_to(before)
        result = function(*arguments, **options)
        strikes.come_to(after)
        return result

    return wrapped


def run(step: str, number: int, words: list[str]) -> int:
    """Run the command ``words``; return its exit code if it comes to an end."""
    strikes = DeathCount(step, number)
    patched: Any = target_writer
    patched.Producer = dying(strikes)
    admin: Any = MoveAdmin
    admin.create_topic = around(strikes, "", MoveAdmin.create_topic, "topic created")
    patched.GROUPS_AT_ONCE = 1
    patched.commit_in_transaction = around(strikes, "", patched.commit_in_transaction, "offsets sent")
    applications: Any = move
    applications.move_applications = around(
        strikes, "before applications", move.move_applications, "after applications"
    )
    return main(words)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
