"""The clients' settings, read once from the same configuration, and not in each simulated process again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings

_read_client, _read_producer = ClientSettings.from_config, ProducerSettings.of
_of_clients: dict[tuple[tuple[str, Any], ...], ClientSettings] = {}
_of_producers: dict[tuple[tuple[str, Any], ...], ProducerSettings] = {}


def client_settings_once(config: Mapping[str, Any]) -> ClientSettings:
    """In place of ``ClientSettings.from_config``."""
    key = tuple(config.items())
    if key not in _of_clients:
        _of_clients[key] = _read_client(config)
    return _of_clients[key]


def producer_settings_once(config: Mapping[str, Any]) -> ProducerSettings:
    """In place of ``ProducerSettings.of``."""
    key = tuple(config.items())
    if key not in _of_producers:
        _of_producers[key] = _read_producer(config)
    return _of_producers[key]


@contextmanager
def settings_read_once() -> Iterator[None]:
    """Share the settings of all processes of the run in the ``with`` block, and of all runs."""
    with (
        patch.object(ClientSettings, "from_config", client_settings_once),
        patch.object(ProducerSettings, "of", producer_settings_once),
    ):
        yield
