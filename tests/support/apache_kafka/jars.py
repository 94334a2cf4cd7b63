"""The released jars of Apache Kafka, the server and its command-line tools, and of Spark's Kafka source.

They come from Maven Central through ``mvn``.

They are kept outside of the repository, in ``$DUALWRITE_KAFKA_JARS`` or in ``~/.cache/dualwrite-tests/``.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

KAFKA_VERSION = "4.4.0"
TOOLS_VERSION = "4.3.1"
"""kafka-tools is not in Maven Central at 4.4.0. The newest tools there run as they were released, on their own client:
over a client of 4.4.0 they do not start, because that lacks a class that they need."""

SPARK_VERSION = "4.2.0"
JDBC_VERSION = "42.7.7"

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_LOGGING = "org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"  # without it Kafka logs nothing at all
_SERVER = "org.apache.kafka", "kafka_2.13", KAFKA_VERSION
_TOOLS = "org.apache.kafka", "kafka-tools", TOOLS_VERSION
_CONFIG_TOOL = "org.apache.kafka", "kafka_2.13", TOOLS_VERSION  # kafka.admin.ConfigCommand; at 4.4.0 it is elsewhere
_PLUGGABLE_TOOLS = "kafka-tools-api"  # kafka_2.13 names it at 4.4.0, needs it for nothing, and cannot have it

# One by one, without what they ask for: Spark has the rest of it, and its parent names further repositories. The
# token provider is for delegation tokens, which no test needs; at 4.2.0 not every mirror has it.
_SPARK_SOURCE = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)

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
_EXCLUSION = "<exclusion><groupId>{0}</groupId><artifactId>{1}</artifactId></exclusion>"
_ALL = _EXCLUSION.format("*", "*")


class JarsError(Exception):
    """Maven did not bring them; the message says why."""


def server_classpath() -> str:
    """The class path of the server and of the Java client; fetched if it is not there yet."""
    exclusion = _EXCLUSION.format("org.apache.kafka", _PLUGGABLE_TOOLS)
    return _classpath(f"kafka-{KAFKA_VERSION}", _described(_SERVER, exclusion) + _described(_LOGGING))


def tools_classpath() -> str:
    """The class path of the command-line tools; fetched if it is not there yet."""
    return _classpath(f"kafka-tools-{TOOLS_VERSION}", _described(_TOOLS) + _described(_LOGGING))


def config_tool_classpath() -> str:
    """The class path of ``kafka.admin.ConfigCommand``, which is kafka-configs.sh; fetched if it is not there yet."""
    return _classpath(f"kafka-configs-{TOOLS_VERSION}", _described(_CONFIG_TOOL) + _described(_LOGGING))


def spark_source_jars() -> list[Path]:
    """The jars of Spark's Kafka source; fetched if they are not there yet.

    :raises JarsError: if they cannot be fetched.
    """
    directory = _jars(f"spark-kafka-{SPARK_VERSION}", "".join(_described(artifact, _ALL) for artifact in _SPARK_SOURCE))
    return sorted(directory.glob("*.jar"))


def jdbc_jars() -> list[Path]:
    """The jar of PostgreSQL's JDBC driver; fetched if it is not there yet.

    :raises JarsError: if it cannot be fetched.
    """
    directory = _jars(f"jdbc-{JDBC_VERSION}", _described(("org.postgresql", "postgresql", JDBC_VERSION), _ALL))
    return sorted(directory.glob("*.jar"))


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


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it where Apache Kafka is required."""
    if "kafka" in os.environ.get("DUALWRITE_REQUIRE", ""):
        pytest.fail(reason)
    pytest.skip(reason)


def _classpath(name: str, dependencies: str) -> str:
    require_java()
    try:
        return f"{_jars(name, dependencies)}/*"
    except JarsError as error:
        unavailable(str(error))


def _jars(name: str, dependencies: str) -> Path:
    cache = Path(os.environ.get("DUALWRITE_KAFKA_JARS", "~/.cache/dualwrite-tests")).expanduser()
    if not (cache / name).exists():
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(cache, name, dependencies)
    return cache / name


def _described(artifact: tuple[str, str, str], exclusions: str = "") -> str:
    return _DEPENDENCY.format(*artifact, exclusions)


def _fetch(cache: Path, name: str, dependencies: str) -> None:
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        Path(scratch, "pom.xml").write_text(_POM.format(dependencies=dependencies))
        command = ["mvn", "-B", "-q", _PLUGIN, "-DoutputDirectory=jars", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except FileNotFoundError:
            raise JarsError("no mvn: install Maven") from None
        if done.returncode != 0:
            raise JarsError(f"Maven Central did not give {name}: {done.stdout[:500]}")
        if not (cache / name).exists():  # another process may have been faster
            Path(scratch, "jars").rename(cache / name)
