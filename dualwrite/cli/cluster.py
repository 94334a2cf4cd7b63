"""A cluster named on the command line: its configuration, by librdkafka's names, and whether a broker answers."""

import argparse
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from dualwrite.cli.actions import Action, add_action
from dualwrite.client.config.native_keys import ALIASES, JAVAS, KEYS
from dualwrite.client.config.reading import BOOTSTRAP_KEY, hint_for
from dualwrite.client.config.settings import ClientSettings
from dualwrite.coordinator.rules.two_phase import KEEP_PREPARED, RESUME, reserved_settings
from dualwrite.errors import ConfigurationError

REACH_SECONDS = 5.0

_FUNCTIONS = ("on_delivery", "on_commit", "logger")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add ``--bootstrap-servers``, ``-X`` and ``--command-config``."""
    parser.add_argument(
        "--bootstrap-servers", required=True, metavar="HOST:PORT", help="one broker of the cluster, or several"
    )
    add_settings(parser)


def add_cluster_action(actions: Any, name: str, action: Action, purpose: str) -> argparse.ArgumentParser:
    """Add an action with the options of :func:`add_cluster`; return its parser."""
    subparser = add_action(actions, name, action, purpose)
    add_cluster(subparser)
    return subparser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``-X`` and ``--command-config``."""
    parser.add_argument(
        "-X",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting by librdkafka's name, such as security.protocol=SASL_SSL; may be repeated",
    )
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="a file of such settings, one per line: for passwords, which other users of the machine can see in -X",
    )


def add_two_phase(parser: argparse.ArgumentParser) -> None:
    """Add ``--two-phase``."""
    parser.add_argument(
        "--two-phase",
        choices=(KEEP_PREPARED, RESUME),
        default=KEEP_PREPARED,
        help="the application's own mode: resume, on an Apache Kafka that keeps no prepared transaction",
    )


def cluster_config(arguments: argparse.Namespace) -> dict[str, Any]:
    """The configuration from the options of :func:`add_cluster`.

    :raises ConfigurationError: if a setting is malformed, unknown, or possible from Python only.
    """
    config: dict[str, Any] = {}
    owned = reserved_settings(getattr(arguments, "two_phase", KEEP_PREPARED))
    if arguments.command_config is not None:
        config.update(_parsed(_lines_of("--command-config", arguments.command_config), owned))
    given = _parsed((("-X", text) for text in arguments.settings), owned)
    replaced = {ALIASES.get(key, key) for key in given}  # a setting of the file may have the other name
    config = {key: value for key, value in config.items() if ALIASES.get(key, key) not in replaced} | given
    config[BOOTSTRAP_KEY] = arguments.bootstrap_servers
    ClientSettings.from_config(config)
    return config


def config_at(option: str, bootstrap_servers: str, command_config: Path | None) -> dict[str, Any]:
    """The configuration of one of several clusters on a command line.

    :param option: of ``bootstrap_servers``, for errors.
    :param command_config: a file of settings, one per line.
    :raises ConfigurationError: if a setting is malformed, unknown, or possible from Python only.
    """
    owned = reserved_settings(KEEP_PREPARED)
    config: dict[str, Any] = {}
    if command_config is not None:
        config.update(_parsed(_lines_of(f"{option}-config", command_config), owned))
    config[BOOTSTRAP_KEY] = bootstrap_servers
    try:
        ClientSettings.from_config(config)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from None
    return config


def require_cluster(config: Mapping[str, Any]) -> None:
    """Fail within seconds if no broker answers. Later requests wait as long as a cluster's failover may take.

    :raises KafkaUnavailableError: if no broker answers.
    """
    from dualwrite.client.admin.control_plane import ControlPlane  # here, as it imports a Kafka client

    control = ControlPlane(config, timeout=REACH_SECONDS)
    try:
        control.supports_keep_prepared()
    finally:
        control.close()


def reached_cluster(config: dict[str, Any]) -> dict[str, Any]:
    """``config``, once a broker has answered; see :func:`require_cluster`.

    :raises KafkaUnavailableError: if no broker answers.
    """
    require_cluster(config)
    return config


def _lines_of(option: str, file: Path) -> Iterable[tuple[str, str]]:
    """The lines of ``file`` that are neither empty nor comments, each with its place.

    :param option: by which the file is named, for errors.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigurationError(f"{option} {file}: {reason}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.strip().startswith("#"):
            yield f"{file}, line {number}", line.strip()


def _parsed(settings: Iterable[tuple[str, str]], owned: Collection[str]) -> dict[str, str]:
    config = {}
    for origin, text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key:
            raise ConfigurationError(f"{origin}: no KEY=VALUE")
        if not equals:
            raise ConfigurationError(f"{origin}: {text.split()[0]!r} is not followed by =VALUE")
        if ALIASES.get(key, key) == BOOTSTRAP_KEY:
            raise ConfigurationError(f"{origin}: {key}: use --bootstrap-servers")
        if key in owned:
            raise ConfigurationError(f"{origin}: {key} is set by dualwrite itself: remove it")
        if key in _FUNCTIONS or key.endswith("_cb"):
            raise ConfigurationError(f"{origin}: {key} is a function, which only Python code can pass")
        if key in JAVAS:
            raise ConfigurationError(f"{origin}: {key} is a setting of Java's clients: use {JAVAS[key]}")
        if key not in KEYS and key not in ALIASES:
            raise ConfigurationError(f"{origin}: {key}: there is no such setting{hint_for(key)}")
        rule = KEYS[ALIASES.get(key, key)].rule
        if rule.is_range:
            rule.checked(f"{origin}: {key}", value)
        config[key] = value
    return config
