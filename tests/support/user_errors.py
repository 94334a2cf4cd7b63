"""Exceptions that users' code and their signal handlers raise, in tests of where they come out again."""


class FalsyError(Exception):
    """An exception that is false, as a list of errors is that is empty."""

    def __len__(self) -> int:
        return 0


class UserError(Exception):
    """The user's own code raises it."""


class LimitError(Exception):
    """As Celery's SoftTimeLimitExceeded: a signal handler raises it to limit a task's time."""


class Interrupt(KeyboardInterrupt):
    """Ctrl-C."""


class HandlerInterrupt(BaseException):
    """As KeyboardInterrupt, out of a signal handler, but no special case for pytest and ``asyncio.run()``."""
