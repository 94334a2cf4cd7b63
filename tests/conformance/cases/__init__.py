"""The cases: each a function over a broker under test that notes what it is answered. One module for each subject."""

from collections.abc import Callable

from tests.support.conformance.subject import Subject

Case = Callable[[Subject], None]

CASES: dict[str, Case] = {}
"""Every case, by "module.function"."""


def case(function: Case) -> Case:
    """Make ``function`` a case."""
    module = function.__module__.rpartition(".")[2]
    CASES[f"{module}.{function.__name__}"] = function
    return function
