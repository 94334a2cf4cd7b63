"""The progress of a long command: a bar on a terminal, a line for each tenth elsewhere."""

import io

import pytest

from dualwrite.cli.progress import ProgressReport
from dualwrite.loader.job import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class MovedClock:
    """A clock in seconds that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


def test_without_a_terminal_there_is_a_line_for_each_tenth(clock: MovedClock) -> None:
    stream = io.StringIO()
    report = ProgressReport("f.csv", stream, clock)
    for rows in (0, 50, 1000, 1500, 1550, 9999, 10_000, 10_000):
        report(Progress(rows, 0, rows / 10_000))
    report.close()
    assert stream.getvalue().splitlines() == [
        "f.csv: 1,000 rows, 10 %",
        "f.csv: 9,999 rows, 90 %",
        "f.csv: 10,000 rows, 100 %",
    ]


def test_without_a_terminal_nothing_is_printed_before_there_are_new_rows(clock: MovedClock) -> None:
    stream = io.StringIO()
    report = ProgressReport("f.csv", stream, clock)
    report(Progress(0, 0, 0.4))
    report(Progress(500, 500, 1.0))
    assert stream.getvalue() == ""
    report(Progress(501, 500, 1.0))
    assert stream.getvalue() == "f.csv: 501 rows, 100 %\n"


def test_on_a_terminal_a_bar_is_drawn_in_place(clock: MovedClock) -> None:
    stream = Terminal()
    report = ProgressReport("f.csv", stream, clock)
    report(Progress(0, 0, 0))
    clock.seconds = 2
    report(Progress(5000, 1000, 0.5))
    report.close()
    assert stream.getvalue() == (
        "\r\x1b[Kf.csv [" + "-" * 30 + "]   0%  0 rows"
        "\r\x1b[Kf.csv [" + "#" * 15 + "-" * 15 + "]  50%  5,000 rows  2,000 rows/s\n"
    )


def test_a_bar_is_drawn_ten_times_a_second_at_most_and_at_the_end(clock: MovedClock) -> None:
    stream = Terminal()
    report = ProgressReport("f.csv", stream, clock)
    for step in range(1, 101):
        clock.seconds = step / 100
        report(Progress(step, 0, step / 101))
    assert 9 <= stream.getvalue().count("\r") <= 11
    report(Progress(101, 0, 1.0))
    assert stream.getvalue().endswith("100%  101 rows  101 rows/s")


def test_a_report_that_never_drew_leaves_the_terminal_alone(clock: MovedClock) -> None:
    stream = Terminal()
    ProgressReport("f.csv", stream, clock).close()
    assert stream.getvalue() == ""
