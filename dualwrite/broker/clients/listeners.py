"""The addresses on which the broker listens, each with its security protocol, and the addresses that clients get.

Sources: Kafka's SocketServerConfigs (the form of an address, the default map), KafkaConfig and CoreUtils (the checks).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import ip_address
from typing import NamedTuple

from dualwrite.errors import ConfigurationError

LISTENERS = "listeners"
ADVERTISED_LISTENERS = "advertised.listeners"
PROTOCOL_MAP = "listener.security.protocol.map"
DEFAULT_LISTENERS = "PLAINTEXT://127.0.0.1:9092"
"""Kafka's default is every address of the machine. This broker is open to other machines only on request."""
DEFAULT_PROTOCOL_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104  for comparison only
"""Hosts that stand for every address: a server can listen on them, but no client can connect to them."""

_ENDPOINT = re.compile(r"([0-9A-Za-z._-]+)://(\[[0-9A-Za-z._:%-]*\]|[0-9A-Za-z._%-]*):([0-9]{1,5})")
_HIGHEST_PORT = 65535


class SecurityProtocol(Enum):
    """How the connections of a listener are protected (Kafka: SecurityProtocol)."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_tls(self) -> bool:
        """True if a connection begins with a TLS handshake."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def is_sasl(self) -> bool:
        """True if a client must authenticate by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Listener:
    """One address on which the broker listens.

    :param name: the name, in upper case.
    :param host: the host to listen on; one of WILDCARDS for every address.
    :param port: the port to listen on; 0 until a free one is picked.
    :param advertised_host: the host for clients.
    :param advertised_port: the port for clients; 0 if it is the port to listen on, which is not known yet.
    """

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised_host: str
    advertised_port: int

    @property
    def address(self) -> str:
        """HOST:PORT to listen on."""
        return host_and_port(self.host or WILDCARDS[1], self.port)

    def on_port(self, port: int) -> "Listener":
        """This listener once it is bound to ``port``."""
        return replace(self, port=port, advertised_port=self.advertised_port or port)


class ListenerEndpoint(NamedTuple):
    """One entry of ``listeners`` or ``advertised.listeners``."""

    name: str
    host: str
    port: int


PLAINTEXT_LISTENER = Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 9092, "127.0.0.1", 9092)
"""The listener of a broker without settings."""


def host_and_port(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """True if only this machine can connect to ``host``. A name is taken for one of this machine: which address it
    stands for is known once the socket is bound."""
    if host in WILDCARDS:
        return False
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return True


def unprotected(listener: Listener, accepts_anyone: bool = False) -> str:
    """The error message for a listener that other machines reach and that authenticates no client.

    :param accepts_anyone: True if it is one with SASL whose tokens anyone can write.
    """
    where = f"listener {listener.name} on {listener.address}: other machines reach it, and"
    if accepts_anyone and listener.protocol.is_sasl:
        return (
            f"{where} it accepts access tokens without a signature, so that any client can be any user; unset"
            " sasl.oauthbearer.unsecured.tokens.allow, listen on 127.0.0.1, or allow it with --allow-anonymous"
        )
    remedy = (
        f"set listener.name.{listener.name.lower()}.ssl.client.auth=required"
        if listener.protocol.is_tls
        else "give it a protocol that authenticates clients"
    )
    return (
        f"{where} {listener.protocol.value} authenticates no client; {remedy}, listen on 127.0.0.1, or allow it with"
        " --allow-anonymous"
    )


def parse_endpoint(text: str) -> ListenerEndpoint | None:
    """The entry ``NAME://HOST:PORT``; None if ``text`` does not have this form. An IPv6 host stands in brackets."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or int(match[3]) > _HIGHEST_PORT:
        return None
    return ListenerEndpoint(match[1].upper(), match[2].removeprefix("[").removesuffix("]"), int(match[3]))


def parse_listeners(
    listeners: Sequence[str],
    advertised: Sequence[str] | None,
    protocol_map: Sequence[str],
    controllers: Sequence[str] = (),
) -> tuple[Listener, ...]:
    """The listeners for clients that result from the values of the settings.

    :param listeners: the entries of ``listeners``.
    :param advertised: the entries of ``advertised.listeners``; None if it is not set. A listener that it does not name
        has its own address for clients.
    :param protocol_map: the entries of ``listener.security.protocol.map``.
    :param controllers: the names in ``controller.listener.names``: their listeners are for other controllers, of which
        there are none.
    :raises ConfigurationError: if a value is invalid, or two contradict each other. The message names the setting.
    """
    protocols = _protocols(protocol_map)
    absent = {name.upper() for name in controllers}
    own = [endpoint for endpoint in _endpoints(LISTENERS, listeners) if endpoint.name not in absent]
    if not own:
        raise ConfigurationError(
            f"broker setting {LISTENERS}: {', '.join(sorted(absent))} is for controllers; add a listener for clients"
        )
    _refuse_shared_ports(own)
    to_clients = {
        endpoint.name: endpoint
        for endpoint in _endpoints(ADVERTISED_LISTENERS, advertised or ())
        if endpoint.name not in absent
    }
    if advertised is not None and not advertised:
        raise ConfigurationError(
            f"broker setting {ADVERTISED_LISTENERS} is empty: expected NAME://HOST:PORT, or do not set it"
        )
    names = [endpoint.name for endpoint in own]
    for name in to_clients:
        if name not in names:
            raise ConfigurationError(
                f"broker setting {ADVERTISED_LISTENERS}: {name} is no listener; {LISTENERS} has {', '.join(names)}"
            )
    return tuple(_listener(endpoint, to_clients.get(endpoint.name), protocols) for endpoint in own)


def _listener(
    own: ListenerEndpoint, to_clients: ListenerEndpoint | None, protocols: Mapping[str, SecurityProtocol]
) -> Listener:
    protocol = protocols.get(own.name)
    if protocol is None:
        raise ConfigurationError(
            f"broker setting {LISTENERS}: {own.name} has no security protocol; add {own.name}:SSL, or another one, to"
            f" {PROTOCOL_MAP}"
        )
    host, port = own.host, own.port
    if to_clients is not None:
        host, port = to_clients.host, to_clients.port
        if host in WILDCARDS or not port:
            raise ConfigurationError(
                f"broker setting {ADVERTISED_LISTENERS}: no client can connect to"
                f" {own.name}://{host_and_port(host, port)}; name a host and a port"
            )
    elif host in WILDCARDS:
        raise ConfigurationError(
            f"listening on {host or 'every address'}: clients cannot connect to that address; set one for them with"
            f" --config {ADVERTISED_LISTENERS}={own.name}://HOST:PORT"
        )
    return Listener(own.name, protocol, own.host, own.port, host, port)


def _protocols(entries: Sequence[str]) -> dict[str, SecurityProtocol]:
    protocols: dict[str, SecurityProtocol] = {}
    for entry in entries:
        name, colon, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not colon or not name or protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigurationError(
                f"broker setting {PROTOCOL_MAP}: {entry!r} is not NAME:PROTOCOL; the protocols are {known}"
            )
        if name in protocols:
            raise ConfigurationError(f"broker setting {PROTOCOL_MAP}: {name} occurs twice")
        protocols[name] = SecurityProtocol[protocol]
    return protocols


def _endpoints(setting: str, entries: Sequence[str]) -> list[ListenerEndpoint]:
    endpoints = []
    for entry in entries:
        endpoint = parse_endpoint(entry)
        if endpoint is None:
            raise ConfigurationError(
                f"broker setting {setting}: {entry[:80]!r} is not NAME://HOST:PORT, as in SSL://127.0.0.1:9093"
            )
        endpoints.append(endpoint)
    for name, count in Counter(endpoint.name for endpoint in endpoints).items():
        if count > 1:
            raise ConfigurationError(
                f"broker setting {setting}: the name {name} occurs twice; give each listener its own name"
            )
    return endpoints


def _refuse_shared_ports(endpoints: Sequence[ListenerEndpoint]) -> None:
    """Two listeners may share a port only if one is on an IPv4 address and the other on an IPv6 address."""
    by_port: dict[int, list[ListenerEndpoint]] = {}
    for endpoint in endpoints:
        if endpoint.port:
            by_port.setdefault(endpoint.port, []).append(endpoint)
    for port, sharing in by_port.items():
        if len(sharing) > 1 and sorted(_versions(sharing)) != [4, 6]:
            names = " and ".join(endpoint.name for endpoint in sharing)
            raise ConfigurationError(
                f"broker setting {LISTENERS}: {names} have the same port {port}; give each its own port"
            )


def _versions(endpoints: Sequence[ListenerEndpoint]) -> Iterator[int]:
    """The IP version of each host; 0 for a name."""
    for endpoint in endpoints:
        try:
            yield ip_address(endpoint.host.partition("%")[0]).version
        except ValueError:
            yield 0
