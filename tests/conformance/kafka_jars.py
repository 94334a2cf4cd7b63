"""The released jars of Apache Kafka: the server and its command-line tools, from Maven Central through ``mvn``.

They are kept outside of the repository, in ``$DUALWRITE_KAFKA_JARS`` or in ``~/.cache/dualwrite-tests/``.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

KAFKA_VERSION = "4.4.0"
TOOLS_VERSION = "4.3.1"
"""kafka-tools is not in Maven Central at 4.4.0. The newest tools there run as they were released, on their own client:
over a client of 4.4.0 they do not start, because that lacks a class that they need."""

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_LOGGING = "org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"  # without it Kafka logs nothing at all
_SERVER = "org.apache.kafka", "kafka_2.13", KAFKA_VERSION
_TOOLS = "org.apache.kafka", "kafka-tools", TOOLS_VERSION
_PLUGGABLE_TOOLS = "kafka-tools-api"  # kafka_2.13 names it at 4.4.0, needs it for nothing, and cannot have it

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """<dependency>
  <groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
  <exclusions>{3}</exclusions>
</dependency>"""
_EXCLUSION = "<exclusion><groupId>org.apache.kafka</groupId><artifactId>{0}</artifactId></exclusion>"


def server_classpath() -> str:
    """The class path of the server and of the Java client; fetched if it is not there yet."""
    return _classpath(f"kafka-{KAFKA_VERSION}", _SERVER, without=_PLUGGABLE_TOOLS)


def tools_classpath() -> str:
    """The class path of the command-line tools; fetched if it is not there yet."""
    return _classpath(f"kafka-tools-{TOOLS_VERSION}", _TOOLS)


def require_java() -> str:
    """The ``java`` to run.

    Without java, or without mvn to fetch what it is to run, the test is skipped; it fails instead where
    ``DUALWRITE_REQUIRE`` has the word "kafka" in it.
    """
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if missing:
        unavailable(f"no {' and no '.join(missing)}: install a JRE (17 or newer) and Maven")
    java = shutil.which("java")
    assert java is not None
    return java


def unavailable(reason: str) -> None:
    """Skip the test, or fail it where Apache Kafka is required."""
    if "kafka" in os.environ.get("DUALWRITE_REQUIRE", ""):
        pytest.fail(reason)
    pytest.skip(reason)


def _classpath(name: str, artifact: tuple[str, str, str], without: str = "") -> str:
    require_java()
    cache = Path(os.environ.get("DUALWRITE_KAFKA_JARS", "~/.cache/dualwrite-tests")).expanduser()
    if not (cache / name).exists():
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(cache, name, artifact, without)
    return f"{cache / name}/*"


def _fetch(cache: Path, name: str, artifact: tuple[str, str, str], without: str) -> None:
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        exclusion = _EXCLUSION.format(without) if without else ""
        dependencies = _DEPENDENCY.format(*artifact, exclusion) + _DEPENDENCY.format(*_LOGGING, "")
        Path(scratch, "pom.xml").write_text(_POM.format(dependencies=dependencies))
        command = ["mvn", "-B", "-q", _PLUGIN, "-DoutputDirectory=jars", "-DincludeScope=runtime"]
        done = subprocess.run(command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            unavailable(f"Maven Central did not give {':'.join(artifact)}: {done.stdout[:500]}")
        if not (cache / name).exists():  # somebody else may have been faster
            Path(scratch, "jars").rename(cache / name)
