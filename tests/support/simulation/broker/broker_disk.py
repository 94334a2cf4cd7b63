"""The disk of the simulated broker: at any use of it the process may end, or get an error, and of an append a part may
be written."""

import random
from collections.abc import Callable

from dualwrite.ports import Files
from tests.support.broker.ending_files import EndingFiles, no_last_words


class BrokerEnded(BaseException):
    """The broker's process has ended: raised by every use of its disk from then on."""


class BrokerDisk(EndingFiles):
    """The Files of one broker process.

    :param ends: called at each change; True if the process ends here, or gets an error.
    :param end: called then, once a part of an append may be written. It ends the process, or raises the error.
    """

    def __init__(self, beneath: Files, rng: random.Random, ends: Callable[[], bool], end: Callable[[], None]) -> None:
        super().__init__(beneath, rng)
        self._ends = ends
        self._end = end
        self.has_ended = False

    def require_alive(self) -> None:
        if self.has_ended:
            raise BrokerEnded

    def use(self, last_words: Callable[[], None] = no_last_words) -> None:
        self.require_alive()
        if self._ends():
            last_words()
            self._end()
            raise BrokerEnded
