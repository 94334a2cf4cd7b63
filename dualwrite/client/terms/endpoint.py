"""A broker's address, as drivers, engine and settings use it."""

from typing import NamedTuple

from dualwrite.errors import ConfigurationError

DEFAULT_PORT = 9092
_MOST_DIGITS = 5
"""Of a port. Python reads up to 4,300."""


class Endpoint(NamedTuple):
    """A broker's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, security_protocol: str = "PLAINTEXT") -> "Endpoint":
        """The endpoint that ``text`` names: HOST, HOST:PORT, [IPV6]:PORT, each with an optional PROTOCOL:// before it.

        :param security_protocol: the protocol of the client, in capital letters.
        :raises ConfigurationError: if it has none of these forms, or names another protocol.
        """
        protocol, _, address = text.strip().rpartition("://")
        if protocol.lower() in ("http", "https"):
            raise ConfigurationError(f"bootstrap.servers {text!r}: give HOST:PORT, without {protocol}://")
        if protocol and protocol.upper() != security_protocol:
            raise ConfigurationError(f"bootstrap.servers: {text!r} is not security.protocol's {security_protocol}")
        if address.startswith("["):
            host, _, rest = address[1:].partition("]")
            port = rest.removeprefix(":")
        else:
            host, _, port = address.partition(":")
        port = port or str(DEFAULT_PORT)
        if not host or not port.isdecimal() or len(port) > _MOST_DIGITS or not 0 < int(port) < 65536:
            raise ConfigurationError(f"bootstrap.servers: {text!r:.300} is not HOST:PORT")
        return cls(host, int(port))
