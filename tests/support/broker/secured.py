"""A broker with listeners of TLS, some of which have something wrong, and the files that clients need."""

import ssl
from pathlib import Path

from tests.support.client.certificates import EXPIRED, Authority

STORE, TRUST, AUTH = "ssl.keystore.location", "ssl.truststore.location", "ssl.client.auth"


class Keys:
    """An authority, what it has signed, and the settings that name the files."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority()
        self.directory = directory
        self.trust = self.authority.file(directory / "ca.pem")
        self.broker = self.authority.issue().in_one(directory / "broker.pem")
        self.client = self.authority.issue("orders", hosts=()).in_two(directory, "orders")

    def listeners(self) -> dict[str, str]:
        """Settings of a broker: a good listener, one that asks for certificates, and three that clients refuse."""
        expired = self.authority.issue(valid=EXPIRED).in_one(self.directory / "expired.pem")
        elsewhere = self.authority.issue(hosts=["elsewhere.example"]).in_one(self.directory / "elsewhere.pem")
        names = ("PLAINTEXT", "SSL", "MUTUAL", "EXPIRED", "ELSEWHERE", "NEWEST")
        return {
            "listeners": ",".join(f"{name}://localhost:0" for name in names),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT," + ",".join(f"{name}:SSL" for name in names[1:]),
            STORE: self.broker,
            TRUST: self.trust,
            f"listener.name.mutual.{AUTH}": "required",
            f"listener.name.expired.{STORE}": expired,
            f"listener.name.elsewhere.{STORE}": elsewhere,
            "listener.name.newest.ssl.enabled.protocols": "TLSv1.3",
            "group.initial.rebalance.delay.ms": "0",
        }

    def context(self, *, mutual: bool = False, trust: str | None = None) -> ssl.SSLContext:
        """What a client of Python's own ssl needs."""
        context = ssl.create_default_context(cafile=trust or self.trust)
        if mutual:
            context.load_cert_chain(*self.client)
        return context

    def librdkafka(self, *, mutual: bool = False) -> dict[str, str]:
        """The settings of a client on librdkafka, and of our own producer."""
        settings = {"security.protocol": "SSL", "ssl.ca.location": self.trust}
        if mutual:
            settings |= {"ssl.certificate.location": self.client[0], "ssl.key.location": self.client[1]}
        return settings

    def kafka_python(self, *, mutual: bool = False) -> dict[str, str]:
        """The settings of kafka-python."""
        settings = {"security_protocol": "SSL", "ssl_cafile": self.trust}
        if mutual:
            settings |= {"ssl_certfile": self.client[0], "ssl_keyfile": self.client[1]}
        return settings
