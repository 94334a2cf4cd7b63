"""No setting of the native producer is accepted and then ignored: each changes a value that the producer reads."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import dualwrite
from dualwrite.client.config.native_keys import KEYS, Use
from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.terms.endpoint import Endpoint

LEAST = {"bootstrap.servers": "b:1", "transactional.id": "t"}
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
TOKENS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": print}
TLS = {"security.protocol": "SSL"}
CERTIFICATE = {"ssl.certificate.location": "c.pem"}
PLAIN_TRANSACTIONS = {"transaction.two.phase.commit.enable": False}

ONE_VALUE = {"acks", "enable.idempotence"}
"""What they ask for is what every transaction needs."""

OTHER_VALUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "transaction.timeout.ms": (30_000, PLAIN_TRANSACTIONS),
    "transaction.two.phase.commit.enable": (False, {}),
    "compression.level": (5, {"compression.type": "gzip"}),
    "compression.type": ("zstd", {}),
    "partitioner": ("murmur2", {}),
    "sticky.partitioning.linger.ms": (0, {}),
    "allow.auto.create.topics": (False, {}),
    "security.protocol": ("SSL", {}),
    "ssl.ca.location": ("ca.pem", TLS),
    "ssl.ca.pem": ("-----BEGIN", TLS),
    "ssl.certificate.location": ("c.pem", TLS),
    "ssl.key.location": ("k.pem", TLS | CERTIFICATE),
    "ssl.key.password": ("p", TLS | CERTIFICATE),
    "enable.ssl.certificate.verification": (False, TLS),
    "ssl.endpoint.identification.algorithm": ("none", TLS),
    "sasl.mechanism": ("SCRAM-SHA-256", SASL),
    "sasl.username": ("other", SASL),
    "sasl.password": ("other", SASL),
    "sasl.oauthbearer.config": ("x", TOKENS),
    "oauth_cb": (repr, TOKENS),
    "socket.keepalive.enable": (True, {}),
    "socket.nagle.disable": (False, {}),
    "on_delivery": (print, {}),
    "bootstrap.servers": ("other:1", {}),
    "client.id": ("other", {}),
    "transactional.id": ("other", {}),
    "metadata.max.age.ms": (1000, {}),
    "max.in.flight.requests.per.connection": (2, {}),
}
"""A value that is not the default, and what it needs beside it; numbers that are not here get 1234."""


@pytest.mark.parametrize("name", sorted(name for name, key in KEYS.items() if key.use is Use.TAKEN))
def test_every_setting_that_is_taken_makes_a_difference(name: str) -> None:
    value, needed = OTHER_VALUES.get(name, (1234, {}))
    before = LEAST | needed
    changed = ProducerSettings.of(before | {name: "all" if name == "acks" else True if name in ONE_VALUE else value})
    assert (changed == ProducerSettings.of(before)) is (name in ONE_VALUE)


@pytest.mark.parametrize("field", [setting.name for setting in fields(ProducerSettings)])
def test_every_setting_that_was_read_is_looked_at(field: str) -> None:
    rooms = Path(dualwrite.__file__).parent / "client"
    readers = [path for path in rooms.rglob("*.py") if path.parent.name in ("engine", "producer", "drivers")]
    pattern = re.compile(rf"(settings|made)\.{field}\b")
    within = (
        (rooms / "config" / "producer_settings.py").read_text().partition("def pause_after")[2].partition("def of")[0]
    )
    assert re.search(rf"self\.{field}\b", within) or any(pattern.search(path.read_text()) for path in readers)


def test_absent_keys_give_the_same_settings_as_the_constructors_defaults() -> None:
    client = ClientSettings((Endpoint("b", 1),))
    assert ProducerSettings.of(LEAST) == ProducerSettings(client, "t")
