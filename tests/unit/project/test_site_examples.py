"""The site's examples: a broken one fails the build, and what the others print is shown below them."""

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parents[3]
DOCS = HOME / "docs"
SHOWN = {
    "README.md": 1,
    "docs/asyncio.md": 2,
    "docs/consuming.md": 1,
    "docs/databases.md": 3,
    "docs/dead-letters.md": 1,
    "docs/producing.md": 1,
    "docs/tutorial.md": 7,
    "docs/workers.md": 2,
}
"""How many blocks of each page are run by the build, with what they print."""


SHOP = """\
from sqlalchemy import MetaData, create_engine, inspect

engine = create_engine("sqlite:///shop.db")
metadata = MetaData()
TEA = "green"
"""
"""The file that a tutorial shares with all pages."""


def build(site: Path, pages: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Build a site of ``pages`` in ``site``, with the hook of the real one."""
    (site / "docs").mkdir()
    for name, text in pages.items():
        (site / "docs" / name).write_text(text, encoding="utf-8")
    config = {
        "site_name": "shop",
        "theme": "mkdocs",
        "hooks": [str(DOCS / "site_examples.py")],
        "markdown_extensions": ["attr_list", "pymdownx.highlight", "pymdownx.superfences"],
        "use_directory_urls": False,
    }
    (site / "mkdocs.yml").write_text(json.dumps(config), encoding="utf-8")  # YAML, too
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(site / "mkdocs.yml")],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def example(code: str, marker: str = "output", kind: str = "python") -> str:
    return f"<!-- {marker} -->\n```{kind}\n{code}\n```\n"


@pytest.fixture
def examples() -> Any:
    """The module with the hook."""
    pytest.importorskip("mkdocs")
    import site_examples

    return site_examples


def test_the_output_is_shown_below_the_code(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    typed = [
        "# Shop\n",
        example('import shop\n\ncups = 7\nprint(cups, "cups")'),
        example("cups *= 6", "run"),
        example("import sys\n\nprint(cups, shop.TEA, file=sys.stderr)"),
        example("print(len(shop.inspect(shop.engine).get_table_names()), 'tables')"),
        example("raise RuntimeError(9 * 9)", "unmarked"),
    ]
    kill = "import os; os.kill(os.getpid(), 9)"
    console = f"$ python -c 'import shop; print(shop.TEA)'\ngreen\n$ python -c '{kill}'\nKilled"
    file = f'# Tutorial\n\n```python title="shop.py"\n{SHOP}```\n\n'
    tutorial = file + example(console, kind="console")
    done = build(tmp_path, {"index.md": "\n".join(typed), "tutorial.md": tutorial})
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert page.count('<span class="filename">Output</span>') == page.count('class="output highlight"') == 3
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    in_order = ['print(cups, "cups")\n', "7 cups\n", "file=sys.stderr)\n", "42 green\n", "10 tables\n", "RuntimeError"]
    assert sorted(in_order, key=text.index) == in_order
    assert "81" not in text
    assert "Output" not in (tmp_path / "site" / "tutorial.html").read_text(encoding="utf-8")


BROKEN = {
    "raises.md": (example("print(1)") + "\n" + example("def order():\n    {}['tea']\n\norder()"), "9: KeyError: 'tea'"),
    "silent.md": (example("print()"), "3: this example prints nothing"),
    "exits.md": (example("raise SystemExit(0)"), "3: SystemExit: 0"),
    "killed.md": (example("import os\nos.kill(os.getpid(), 9)"), "3: the process ended: SIGKILL; "),
    "syntax.md": (example("print(1)\nprint("), "4: SyntaxError: '(' was never closed"),
    "talks.md": (
        example("print(1)") + example("print(2)", "run"),
        "7: 'print(2)' printed '2', and the page says 'nothing'",
    ),
    "says.md": (
        example("$ python -c 'print(1)'\n1\n$ python -c 'print(2)'\n3", kind="console"),
        """5: "python -c 'print(2)'" printed '2', and the page says '3'""",
    ),
    "fails.md": (
        example("$ python -c '1 / 0'", kind="console"),
        """3: "python -c '1 / 0'": exit code 1; Traceback (most recent call last):""",
    ),
    "apart.md": ("<!-- output -->\n\n" + example("print(1)"), " <!-- output --> stands directly above Python"),
    "other.md": (example("SELECT 1", kind="sql"), " <!-- output --> stands directly above Python"),
}


def test_broken_examples_fail_the_build_with_page_and_line(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pages = {name: text for name, (text, _) in BROKEN.items()}
    done = build(tmp_path, {"index.md": "# Shop\n\n" + example("print('tea')"), **pages})
    assert done.returncode == 1
    said = done.stderr.splitlines()
    for name, (_, line) in BROKEN.items():
        assert [each for each in said if each.startswith(f"{name}:{line}")] != [], (name, done.stderr)
    assert "index.md" not in done.stderr
    assert not (tmp_path / "site" / "index.html").exists()


def test_pages_show_what_their_examples_print(examples: Any) -> None:
    paths = [HOME / "README.md", *DOCS.rglob("*.md")]
    texts = {path.relative_to(HOME).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert {name: text.count("<!-- output -->") for name, text in texts.items() if "<!-- output -->" in text} == SHOWN
    for name in SHOWN:
        steps = examples.steps_of(texts[name])
        done = [examples.Result("printed\n" if step.is_shown else step.printed or "") for step in steps]
        shown = examples.with_outputs(texts[name], done)
        in_blocks = [step for step in steps if step.is_shown]
        assert shown.count('```text { .output title="Output" }\nprinted\n```\n') == len(in_blocks)
        assert in_blocks or name == "docs/tutorial.md"  # whose consoles have it
        assert list(examples.wrong_results(name, texts[name], done)) == []
