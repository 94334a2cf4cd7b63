"""A MariaDB server of the tests' own, from binaries on this machine: it can be killed and started again."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.servers.accounts import server_user

DIRECTORIES = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/bin", "/usr/bin")
START_SECONDS = 60


class MariaDB:
    """A server on a Unix socket in a temporary directory. Commits reach the operating system, not the disk.

    :param program: the path of mariadbd.
    :param options: further ones of the server's.
    """

    def __init__(self, program: Path, *options: str) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="dw-maria-"))
        self._user = server_user("mysql", "nobody")
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._home, account.pw_uid, account.pw_gid)
        # A server that starts deletes the temporary tables in its directory for them, those of others too.
        self._environment = {**os.environ, "TMPDIR": str(self._home)}
        data = f"--datadir={self._home / 'data'}"
        self._command = [
            str(program),
            "--no-defaults",
            data,
            f"--socket={self._home / 'socket'}",
            f"--log-error={self._home / 'errors'}",
            "--skip-networking",
            "--debug-no-sync",
            "--innodb-flush-method=nosync",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        install = find_program("mariadb-install-db")
        assert install is not None
        done = subprocess.run(
            [install, "--no-defaults", data, "--auth-root-authentication-method=normal", "--skip-test-db"],
            user=self._user,
            cwd=self._home,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout

    @property
    def url(self) -> str:
        """The URL of the server, without a database."""
        return f"mysql+pymysql://root@/?unix_socket={self._home / 'socket'}"

    def start(self, *options: str) -> None:
        """Start the server, and return when it answers.

        :param options: further ones for this time.
        """
        self._process = subprocess.Popen(
            [*self._command, *options],
            user=self._user,
            cwd=self._home,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        patience = time.monotonic() + START_SECONDS
        while not answers(self._home / "socket"):
            errors = self._home / "errors"
            log = errors.read_text() if errors.exists() else "it has written no log"
            assert self._process.poll() is None, log
            assert time.monotonic() < patience, log
            time.sleep(0.02)

    @property
    def process(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """Leave nothing."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._home, ignore_errors=True)


def find_program(name: str) -> Path | None:
    """The path of one of MariaDB's programs; servers are seldom on an ordinary user's PATH."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *DIRECTORIES)))
    return None if found is None else Path(found)


def answers(path: Path) -> bool:
    """True if a server listens on the socket at ``path``. A server that was killed leaves its socket there."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
