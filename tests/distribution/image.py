"""``python -m tests.distribution.image``: build the broker's image, and run it by the Containerfile's own commands.

Needs root and podman; and debootstrap, unless the base image is there. Without a registry the base image is a stand-in:
Debian with its own Python, under the name that the Containerfile asks for.
"""

import argparse
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dualwrite.admin.records import read_records
from dualwrite.admin.topics import create_topic
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.ids import PreparedTxnState
from tests.support.client.certificates import Authority
from tests.support.crash.world import free_port
from tests.support.distributions import HOME
from tests.support.waiting import eventually

CONTAINERFILE = HOME / "examples" / "packaging" / "Containerfile"
BASE = "docker.io/library/python:3.13-slim"
SUITE = "trixie"
"""The release of Debian whose Python is the base image's."""
NAME = "dualwrite-image-test"
"""The container and the volume of this program."""
USER, PASSWORD, TOPIC = 10001, "secret of the administrator", "orders"


def main() -> int:
    """Run every check; the first one that fails raises."""
    parser = argparse.ArgumentParser(prog="python -m tests.distribution.image", description=__doc__)
    more = {"action": "append", "default": [], "metavar": "OPTION"}
    parser.add_argument("--build", **more, help="a further option of podman build, such as --build=--network=host")
    parser.add_argument("--run", **more, help="a further option of podman run")
    options = parser.parse_args()
    if subprocess.run(["podman", "image", "exists", BASE], check=False).returncode != 0:
        make_base()
    with tempfile.TemporaryDirectory() as place:
        port, authority = free_port(), Authority()
        conf = configuration(Path(place), port, authority)
        build, volume, users, run = documented({"./conf": str(conf), "9092:9092": f"127.0.0.1:{port}:9092"})
        podman(*build, *options.build)
        done("the Containerfile builds as it stands")
        with removed_at_the_end():
            podman(*volume)
            podman(*with_options(users, options.run), typed=f"{PASSWORD}\n")
            podman(*with_options(run, options.run))
            check(client(port, authority.file(Path(place) / "ca.crt")))
    return 0


def documented(places: dict[str, str]) -> list[list[str]]:
    """The commands in the comments of the Containerfile, with names and places of this program's own."""
    comments, _, _ = CONTAINERFILE.read_text().partition("\nFROM ")
    names = {"create broker": f"create {NAME}", "--name broker": f"--name {NAME}", "-v broker:": f"-v {NAME}:"}
    names |= {"-p 127.0.0.1:9404:9404": "", "-it": "-i", "65536:65536": ":".join([str(open_files())] * 2)}
    text = re.sub(r"\\\n# *", "", comments)
    for before, after in (names | places).items():
        assert before in text, f"no command has {before}"
        text = text.replace(before, after)
    return [shlex.split(command)[1:] for command in re.findall(r"^# {3}(podman .*)", text, re.MULTILINE)]


def open_files() -> int:
    """As many as the comments say, or as this machine allows."""
    return min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def with_options(run: list[str], options: list[str]) -> list[str]:
    return [run[0], *options, *run[1:]]


def configuration(place: Path, port: int, authority: Authority) -> Path:
    """A directory with broker.properties and a broker.pem that only the container's user can read."""
    conf = place / "conf"
    conf.mkdir()
    settings = CONTAINERFILE.with_name("broker.properties").read_text()
    (conf / "broker.properties").write_text(settings.replace("kafka.example:9092", f"localhost:{port}"))
    certificate = authority.issue().in_one(conf / "broker.pem")
    os.chmod(certificate, 0o400)
    os.chown(certificate, USER, USER)
    return conf


def client(port: int, authority: str) -> dict[str, str]:
    """The settings of the administrator's clients on this machine."""
    return {
        "bootstrap.servers": f"localhost:{port}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": PASSWORD,
        "ssl.ca.location": authority,
    }


def check(kafka: dict[str, str]) -> None:
    """What the pages say of the running container, over SIGKILL and a clean stop."""
    wait_until_healthy()
    done("the container runs and passes its health check")
    status = podman("exec", NAME, "cat", "/proc/1/status")
    assert re.search(rf"^Uid:\t{USER}\t", status, re.MULTILINE), status
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE), status
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE), status
    assert subprocess.run(["podman", "exec", NAME, "touch", "/file"], capture_output=True, check=False).returncode != 0
    done("the broker is a plain user without capabilities, in a read-only file system")
    create_topic(kafka, TOPIC)
    state = leave_prepared(kafka)
    assert committed(kafka) == [b"committed"]
    done("a client on this machine logs in over TLS, commits a transaction and prepares another")
    podman("kill", "-s", "KILL", NAME)
    assert podman("wait", NAME).split() == ["137"]
    start_again()
    assert committed(kafka) == [b"committed"]
    with TwoPhaseProducer(kafka | {"transactional.id": TOPIC}) as producer:
        producer.init_transactions(keep_prepared_txn=True)
        assert producer.complete_transaction(state) is TransactionResult.COMMITTED
    assert committed(kafka) == [b"committed", b"prepared"]
    done("after SIGKILL a new start has the record, and the prepared transaction, which can be committed")
    podman("stop", NAME)
    assert podman("wait", NAME).split() == ["0"]
    start_again()
    assert committed(kafka) == [b"committed", b"prepared"]
    done("podman stop ends the broker with 0, and a new start has both records")


def leave_prepared(kafka: dict[str, str]) -> PreparedTxnState:
    """Commit one transaction, and leave another one prepared."""
    with TwoPhaseProducer(kafka | {"transactional.id": TOPIC}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(TOPIC, b"committed")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.produce(TOPIC, b"prepared")
        return producer.prepare_transaction()


def committed(kafka: dict[str, str]) -> list[bytes | None]:
    return [record.value for record in read_records(kafka, TOPIC)]


def start_again() -> None:
    podman("start", NAME)
    wait_until_healthy()


def wait_until_healthy() -> None:
    command = ["podman", "healthcheck", "run", NAME]
    healthy = eventually(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)
    assert healthy, podman("logs", NAME)


def make_base() -> None:
    """Make a base image of Debian's packages, under the name that the Containerfile asks for."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "root"
        packages = "python3,python3-venv,python3-pip,ca-certificates"
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(root)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        (root / "usr/bin/python").symlink_to("python3")
        archive = Path(place) / "root.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
        podman("import", str(archive), BASE)
    print(f"{BASE}: a stand-in with Debian's Python")


@contextmanager
def removed_at_the_end() -> Iterator[None]:
    try:
        yield
    finally:
        podman("rm", "--force", "--ignore", NAME)
        podman("volume", "rm", "--force", NAME)


def podman(*arguments: str, typed: str = "") -> str:
    """What podman prints; it must succeed."""
    command = ["podman", *arguments]
    ended = subprocess.run(command, input=typed, stdout=subprocess.PIPE, text=True, cwd=HOME, check=False)
    assert ended.returncode == 0, shlex.join(command)
    return ended.stdout


def done(claim: str) -> None:
    print(f"ok: {claim}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
