"""The unit of systemd and the Containerfile: what they say agrees with the broker, and their commands work."""

import json
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dualwrite.broker.config import BrokerOptions, read_config_file
from dualwrite.broker.process.ending import STOP_EXIT_CODE
from dualwrite.broker.process.stop_deadline import STOP_SIGNALS
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.cli.main import parser_for
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.certificates import Authority
from tests.support.distributions import HOME
from tests.support.examples.packaging import PACKAGING, PROGRAM, container, container_command, instructions, options_of
from tests.support.monitoring.measured import fetch
from tests.support.requests.calls import all_topics
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, add_users, log_in
from tests.support.waiting import PATIENCE_SECONDS, eventually

UNIT, PROPERTIES = PACKAGING / "dualwrite-broker.service", PACKAGING / "broker.properties"
REFUSED_EXIT_CODE = 2


def service() -> dict[str, list[str]]:
    """The settings of the unit, of all sections; a setting may occur several times."""
    settings: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(key, []).append(value)
    return settings


def commands() -> dict[str, list[str]]:
    return {"systemd": shlex.split(service()["ExecStart"][0]), "container": container_command()}


def seconds(text: str) -> int:
    assert re.fullmatch(r"\d+s", text)
    return int(text[:-1])


@pytest.mark.parametrize("kind", ["systemd", "container"])
def test_the_command_is_one_that_dualwrite_has(kind: str) -> None:
    program, *arguments = commands()[kind]
    assert program == PROGRAM
    parser, _ = parser_for(arguments)
    parsed = parser.parse_args(arguments)
    assert parsed.config_file == Path("/etc/dualwrite/broker.properties")
    assert parsed.metrics.endswith(":9404")


def options(kind: str) -> dict[str, str]:
    return options_of(commands()[kind])


def test_the_service_stops_within_its_time_and_starts_again_after_a_failure() -> None:
    unit = service()
    assert unit["KillSignal"] == ["SIGTERM"] == [STOP_SIGNALS[0].name]
    assert unit["KillMode"] == ["mixed"]
    assert seconds(unit["TimeoutStopSec"][0]) >= float(options("systemd")["--stop-timeout"]) + 10
    assert unit["Restart"] == ["on-failure"]
    assert unit["RestartPreventExitStatus"] == [str(REFUSED_EXIT_CODE)] != [str(STOP_EXIT_CODE)]
    assert unit["StartLimitIntervalSec"] == ["0"], "a full disk may stay full for longer than any number of starts"
    assert int(unit["LimitNOFILE"][0]) // 4 >= int(SETTINGS["max.connections"].default or 0)


def test_the_service_writes_to_its_own_directories_alone_and_is_not_root() -> None:
    unit = service()
    assert unit["User"] == unit["Group"] == ["dualwrite"]
    assert (unit["ProtectSystem"], unit["UMask"], unit["NoNewPrivileges"]) == (["strict"], ["0077"], ["yes"])
    assert options("systemd")["--data-dir"] == f"/var/lib/{unit['StateDirectory'][0]}"
    assert Path(options("systemd")["--audit-log"]).parent == Path(f"/var/log/{unit['LogsDirectory'][0]}")
    assert unit["StateDirectoryMode"] == unit["LogsDirectoryMode"] == ["0700"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_unit_and_finds_it_well_confined(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PROGRAM, sys.executable))  # it must exist
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    confined = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in confined.stderr:
        pytest.skip("systemd before 250 rates no files")
    assert confined.returncode == 0, confined.stdout[-400:]


def test_the_image_runs_as_a_plain_user_with_a_volume_and_stops_by_the_brokers_signal() -> None:
    assert int(container("USER")) > 0
    assert container("VOLUME") == options("container")["--data-dir"]
    assert container("STOPSIGNAL") == "SIGTERM"
    assert container("EXPOSE").split() == ["9092", "9404"]
    user = container("USER")
    assert f"--uid {user} --gid {user} " in " ".join(value for name, value in instructions() if name == "RUN")
    stop_timeout = re.search(r"--stop-timeout (\d+)", (PACKAGING / "Containerfile").read_text())
    assert stop_timeout is not None
    assert int(stop_timeout[1]) >= float(options("container")["--stop-timeout"]) + 10


def copied() -> list[str]:
    """What the image is built of."""
    lines = [value.split() for name, value in instructions(0) if name == "COPY"]
    return [source for sources in lines for source in sources[:-1]]


@pytest.mark.slow
def test_the_copied_files_are_all_that_the_wheel_needs(tmp_path: Path) -> None:
    for name in copied():
        source, target = HOME / name, tmp_path / "src" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "-w", str(tmp_path), str(tmp_path / "src")], check=True, timeout=PATIENCE_SECONDS)
    (wheel,) = tmp_path.glob("dualwrite-*.whl")
    console = HOME / "dualwrite" / "console"
    files = [path for room in ("static", "templates") for path in (console / room).iterdir()]
    assert {path.relative_to(HOME).as_posix() for path in files} <= set(zipfile.ZipFile(wheel).namelist())


def test_everything_that_is_copied_exists() -> None:
    assert [name for name in copied() if not (HOME / name).exists()] == []


def test_every_listener_of_the_settings_authenticates_its_clients() -> None:
    given = BrokerOptions(Path("/data"), config=read_config_file(PROPERTIES))
    assert all(given.authenticates(listener) and listener.protocol.is_tls for listener in given.listeners)
    assert given.access.is_enabled


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["systemd", "container"])
def test_the_command_serves_and_passes_its_health_check(kind: str, tmp_path: Path) -> None:
    """With directories and ports of the test's own in place of the system's."""
    authority = Authority()
    add_users(tmp_path / "data")
    certificate = authority.issue().in_one(tmp_path / "broker.pem")
    settings = PROPERTIES.read_text().replace("0.0.0.0:9092", "127.0.0.1:0").replace("User:admin", f"User:{ALICE}")
    settings = settings.replace("/etc/dualwrite/broker.pem", certificate)
    (tmp_path / "broker.properties").write_text(settings)
    places = {
        "--data-dir": str(tmp_path / "data"),
        "--config-file": str(tmp_path / "broker.properties"),
        "--metrics": "127.0.0.1:0",
        "--audit-log": str(tmp_path / "audit.log"),
    }
    given = {name: places.get(name, value) for name, value in options(kind).items()}
    arguments = [part for option in given.items() for part in option]
    ready, log = tmp_path / "ready", tmp_path / "log"
    command = [sys.executable, "-m", "dualwrite", "broker", *arguments, "--ready-file", str(ready)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    try:
        assert eventually(lambda: ready.exists() or process.poll() is not None, bool)
        assert process.poll() is None, log.read_text()
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        assert found is not None
        assert fetch(f"{found[0]}/readyz")[0] == 200
        check = container("HEALTHCHECK").partition("CMD ")[2].replace("http://127.0.0.1:9404", found[0])
        _, *parts = json.loads(check)
        assert subprocess.run([sys.executable, *parts], timeout=PATIENCE_SECONDS).returncode == 0
        trust = ssl.create_default_context(cafile=authority.file(tmp_path / "ca.pem"))
        with RawClient(ready.read_text().splitlines()[0].replace("127.0.0.1", "localhost"), tls=trust) as client:
            assert log_in(client, "SCRAM-SHA-512").error_code == ErrorCode.NONE
            assert client.ask(all_topics(), 12).error_code == ErrorCode.NONE
    finally:
        process.terminate()
        code = process.wait(PATIENCE_SECONDS)
    assert code == 0
    dead = subprocess.run([sys.executable, *parts], capture_output=True, timeout=PATIENCE_SECONDS)
    assert dead.returncode != 0
