"""A disk that is slow is in the log, and not only in the metrics."""

import logging

import pytest

from dualwrite.broker.process.system import SLOW_ROUND_SECONDS, telling_slow_rounds
from dualwrite.broker.runtime.limited_log import LimitedLog
from dualwrite.broker.runtime.meters import Meters


def test_a_slow_round_of_fsyncs_is_counted_and_logged_and_a_fast_one_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meters = Meters()
    observe = telling_slow_rounds(meters.fsyncs.observe, LimitedLog(logging.getLogger("slow"), 1, lambda: 0.0))
    for seconds in (0.001, SLOW_ROUND_SECONDS, 40.04, 50.0):
        observe(seconds)
    assert meters.fsyncs.count == 4
    assert caplog.messages == ["a round of fsyncs took 40.0 s: check the disk, and what else uses it"]
