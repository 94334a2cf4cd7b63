"""What a run of the tests prints at its end, with this project's own options."""

from pathlib import Path

import pytest

from tests.support import skip_summary

pytest_plugins = ["pytester"]

HOME = Path(__file__).parents[3]

SUITE = """
    import pytest

    @pytest.mark.parametrize("case", range(3))
    def test_one_place(case):
        pytest.skip("no JVM: install it\\nand this is what Maven said")

    def test_another_place():
        pytest.skip("no JVM: install it")

    @pytest.mark.skip(reason="no such database")
    def test_marked():
        pass

    def test_failing():
        assert not "a failure"

    @pytest.fixture
    def broken():
        raise OSError("an error")

    def test_broken(broken):
        pass

    @pytest.mark.xfail
    def test_expected_to_fail():
        assert not "as expected"
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with this project's options and its summary, and without plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(Path(skip_summary.__file__).read_text(encoding="utf-8"))
    pytester.makepyfile(SUITE)
    return pytester


def arguments(suite: pytest.Pytester, *more: str) -> tuple[str, ...]:
    return "-c", str(HOME / "pyproject.toml"), "--rootdir", str(suite.path), *more, "."


@pytest.mark.slow
def test_each_reason_is_one_line_with_its_count_and_failures_stay_visible(suite: pytest.Pytester) -> None:
    """By a worker of xdist's, as in make test: reports come from another process."""
    result = suite.runpytest_subprocess(*arguments(suite, "-p", "xdist.plugin", "-n", "1"))
    result.stdout.fnmatch_lines(
        [
            "*= ERRORS =*",
            "*= FAILURES =*",
            "*= skipped =*",
            "    4 no JVM: install it",
            "    1 no such database",
            "*= short test summary info =*",
            "FAILED *::test_failing*",
            "ERROR *::test_broken*",
            "XFAIL *::test_expected_to_fail*",
            "*1 failed, 5 skipped, 1 xfailed, 1 error*",
        ]
    )
    assert "SKIPPED" not in result.stdout.str()
    assert "Maven said" not in result.stdout.str()


def test_the_places_are_listed_instead_where_they_are_asked_for(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess(*arguments(suite, "-rs"))
    result.stdout.fnmatch_lines(["SKIPPED [[]3] *test_*.py:*: no JVM: install it", "SKIPPED [[]1] *no JVM*"])
    result.stdout.no_fnmatch_line("*= skipped =*")


def test_without_skips_there_is_no_section(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess(*arguments(suite, "-k", "test_failing"))
    result.stdout.no_fnmatch_line("*= skipped =*")
    result.assert_outcomes(failed=1, deselected=7)


def test_the_run_of_these_tests_has_the_summary(pytestconfig: pytest.Config) -> None:
    hooks = pytestconfig.hook.pytest_terminal_summary.get_hookimpls()
    assert skip_summary.pytest_terminal_summary in [hook.function for hook in hooks]
