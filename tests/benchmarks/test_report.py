"""What a report says of the machine: an interpreter that is built without optimisation makes every figure worse."""

import sys
import sysconfig

import pytest

from benchmarks import report


@pytest.mark.parametrize(
    ("options", "prefix", "is_optimised"),
    [
        ("'--enable-optimizations' '--with-lto'", "/opt/python", True),
        ("'--enable-shared'", "/opt/python", False),
        (None, "/opt/python", False),
        ("", "/usr", True),  # the system's own, which does not say so
    ],
)
def test_an_interpreter_without_optimisation_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: str | None,
    prefix: str,
    is_optimised: bool,
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": options}.get)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    report.warn_unless_optimised()
    warning = capsys.readouterr().err
    assert ("built without --enable-optimizations" in warning) is not is_optimised
    assert ("built without optimisation" in str(report.machine()["python"])) is not is_optimised
