"""What a run of the tests has skipped, as one line for each reason.

pytest's own summary has a line for each place in the code: without a JVM alone these are hundreds.
"""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the reasons, the most frequent first; nothing if ``-rs`` lists the places anyway."""
    skipped = terminalreporter.getreports("skipped")
    if not skipped or "s" in terminalreporter.reportchars:
        return
    terminalreporter.section("skipped")
    for reason, count in Counter(map(_reason, skipped)).most_common():
        terminalreporter.write_line(f"{count:5} {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why ``report`` was skipped: the first line, as a reason may end with the output of a whole program."""
    assert isinstance(report.longrepr, tuple)  # the file, the line, the reason
    return str(report.longrepr[2]).removeprefix("Skipped: ").partition("\n")[0]
