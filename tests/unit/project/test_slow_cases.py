"""Which cases of a test run in make test, and which in make slow."""

from pathlib import Path

import pytest

from tests.support import slow_cases

pytest_plugins = ["pytester"]

SUITE = """
    import pytest

    databases = pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])

    @pytest.mark.slow_cases("mariadb", "power-cut")
    @databases
    @pytest.mark.parametrize("crash", ["kill", "power-cut"])
    def test_by_word(database, crash):
        pass

    @pytest.mark.slow_cases()
    @databases
    def test_first(database):
        pass

    @pytest.mark.slow_cases()
    @pytest.mark.slow_cases("sqlite")
    @databases
    def test_both(database):
        pass

    @databases
    def test_all(database):
        pass

    @pytest.mark.slow_cases("mariadb")
    def test_one():
        pass
"""
CONFTEST = """
    def pytest_configure(config):
        config.addinivalue_line("markers", "slow_cases")
        config.addinivalue_line("markers", "slow")

    def pytest_collection_modifyitems(items):
        mark_slow_cases(items)
"""
FAST = {
    "test_by_word[kill-sqlite]",
    "test_by_word[kill-postgresql]",
    "test_first[sqlite]",
    "test_both[postgresql]",
    "test_all[sqlite]",
    "test_all[postgresql]",
    "test_one",
}


def test_cases_named_by_the_marker_are_slow_and_every_case_runs_somewhere(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(Path(slow_cases.__file__).read_text(encoding="utf-8"))
    with open(pytester.path / "conftest.py", "a", encoding="utf-8") as file:
        file.write("\n\n" + CONFTEST.replace("\n    ", "\n"))
    pytester.makepyfile(SUITE)

    def chosen(expression: str) -> set[str]:
        result = pytester.runpytest_inprocess("--collect-only", "-q", "-m", expression)
        return {line.partition("::")[2] for line in result.outlines if "::" in line}

    fast, slow = chosen("not slow"), chosen("slow")
    assert fast == FAST
    assert len(fast | slow) == 6 + 3 + 3 + 3 + 1
    assert not fast & slow


def test_this_suite_has_the_marker(pytestconfig: pytest.Config) -> None:
    assert any(line.startswith("slow_cases(") for line in pytestconfig.getini("markers"))
