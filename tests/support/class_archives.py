"""Archives of the classes that a Java program loads (JEP 350): a JVM that maps one starts in half the processor time.

An archive is made once, in this interpreter's environment, by a run of the program. A JVM that finds none, or one of
another Java or of other jars, starts without.
"""

import fcntl
import subprocess
import sys
from pathlib import Path

QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of each JVM: they live shortly, and there are more of them than processors. The compiler that takes its time
and the collector that works beside the program would cost more than half of what a start takes."""

_HOME = Path(__file__).parents[2]
_SECONDS = 600


def archive(name: str) -> Path:
    """Where the archive of that name is, or will be."""
    return Path(sys.prefix) / f"{name}-classes.jsa"


def mapping(file: Path) -> tuple[str, ...]:
    """The options of a JVM that maps ``file``, if it is there; the JVM would print that there is none."""
    return (f"-XX:SharedArchiveFile={file}", "-Xlog:disable")


def make_archive(file: Path, program: str) -> None:
    """Make ``file`` unless it is there, or another process makes it.

    :param program: the module that makes it, by ``python -m program FILE``.
    """
    if file.exists():
        return
    try:
        lock = file.with_suffix(".lock").open("w")
    except PermissionError:
        return  # not this user's environment
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not file.exists():
            new = file.with_suffix(".new")
            command = [sys.executable, "-m", program, str(new)]
            subprocess.run(command, cwd=_HOME, check=True, capture_output=True, timeout=_SECONDS)
            new.rename(file)
