"""All figures of docs/reference/performance.md and growth.md, by the commands that stand there, as one report.

    python -m benchmarks.page [--only broker native ...] [--directory benchmark-report]

runs every line of these pages that begins with ``python -m benchmarks.``, one after another, and writes ``report.md``
(what each has printed, with pictures of the tables), and ``report.json`` (what each has written with ``--json``, by its
command). It takes some hours: nothing else may run on the machine meanwhile. A command that fails is named in the end;
the others are run.
"""

import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plots.beside import draw_beside

HOME = Path(__file__).parents[1]
PAGES = [HOME / "docs" / "reference" / name for name in ("performance.md", "growth.md")]
_COMMAND = re.compile(r"^    python -m (benchmarks\.(\w+)[^\n]*)$", re.MULTILINE)
_JSON = re.compile(r" --json (\S+)")
_MARKDOWN = re.compile(r" --markdown \S+")
_WITH_A_CHOICE = re.compile(r"\b[A-Z]{3,}\b")


@dataclass(frozen=True)
class PageCommand:
    """One command of a page.

    :param text: what follows ``python -m``.
    """

    text: str
    benchmark: str

    def run(self, directory: Path) -> tuple[str, object, bool]:
        """What it prints, what it writes as JSON, and whether it succeeds."""
        named = _JSON.search(self.text)
        written = directory / named[1] if named else None
        words = _MARKDOWN.sub("", _JSON.sub("", self.text)).split()
        options = [] if written is None else [f"--json={written}"]
        command = [sys.executable, "-m", *words, *options]
        done = subprocess.run(command, cwd=HOME, stdout=subprocess.PIPE, text=True, check=False)
        content = json.loads(written.read_text()) if written is not None and written.exists() else None
        return done.stdout, content, done.returncode == 0


def commands_of(page: str) -> list[PageCommand]:
    """Those of a page, but for such as leave a word in capitals to the reader."""
    found = [PageCommand(text, benchmark) for text, benchmark in _COMMAND.findall(page)]
    return [command for command in found if not _WITH_A_CHOICE.search(command.text)]


def main() -> None:
    """Run all of them.

    :raises SystemExit: if one has failed.
    """
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="the commands of these benchmarks")
    parser.add_argument("--pages", nargs="+", type=Path, default=PAGES, help="where the commands stand")
    parser.add_argument("--directory", type=Path, default=Path("benchmark-report"), help="of the report")
    options = parser.parse_args()
    commands = [command for page in options.pages for command in commands_of(page.read_text())]
    commands = [each for each in commands if not options.only or each.benchmark in options.only]
    if not commands:
        parser.error(f"no command of {', '.join(map(str, options.pages))} is of {', '.join(options.only or ())}")
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    sections, contents, failed = [], {}, []
    for command in commands:
        print(f"python -m {command.text}", flush=True)
        printed, content, is_sound = command.run(directory)
        sections.append(f"## python -m {command.text}\n\n{printed.strip()}\n")
        contents[command.text] = content
        failed += [] if is_sound else [command.text]
        (directory / "report.md").write_text("\n".join(sections))
        (directory / "report.json").write_text(json.dumps(contents, indent=1) + "\n")
    draw_beside(directory / "report.md")
    if failed:
        raise SystemExit("\n".join(f"failed: python -m {text}" for text in failed))


if __name__ == "__main__":
    main()
