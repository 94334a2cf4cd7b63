"""The wheel and the sdist as a release has them, and environments with the wheel in place of this checkout."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cached_property
from pathlib import Path

HOME = Path(__file__).parents[2]
TIMEOUT_SECONDS = 1800  # as long as pip may fetch hundreds of megabytes


@dataclass(frozen=True)
class Distributions:
    """What one build has made."""

    wheel: Path
    sdist: Path

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The wheel's files and their content."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    @cached_property
    def sources(self) -> dict[str, bytes]:
        """The sdist's files and their content, named without the folder that they are in."""
        with tarfile.open(self.sdist) as archive:
            opened = {member.name: archive.extractfile(member) for member in archive.getmembers() if member.isfile()}
            return {name.partition("/")[2]: file.read() for name, file in opened.items() if file is not None}

    @cached_property
    def metadata(self) -> Message:
        """The wheel's METADATA."""
        (content,) = [content for name, content in self.files.items() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(content.decode())


def run(*command: str, cwd: Path) -> str:
    """What ``command`` prints to both streams; it must succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(source: Path, target: Path, *kinds: str) -> None:
    """Build ``source`` into ``target`` with the pinned hatchling, as ``make dist`` does.

    :param kinds: ``--sdist``, ``--wheel``; without one, the wheel is built from the sdist.
    """
    command = (sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(target), str(source))
    run(*command, cwd=target)


def distributions(source: Path, target: Path) -> Distributions:
    """Build an sdist of ``source``, and a wheel from it."""
    build(source, target)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return Distributions(wheel, sdist)


def environment_with(wheel: Path, directory: Path) -> Path:
    """Make a virtual environment in ``directory`` with ``wheel`` and nothing else; return its programs' folder."""
    venv.create(directory)
    programs = directory / "bin"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", str(programs / "python"))
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", str(wheel), cwd=directory)
    return programs


def add_other_packages(programs: Path) -> None:
    """Let the environment import every package of the present one. The wheel stays before this checkout."""
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(str(programs / "python"), "-c", query, cwd=programs).strip())
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "others.pth").write_text("\n".join(others), encoding="utf-8")
