"""A real Apache Kafka with a listener for TLS and SASL, and clients' settings for it."""

import base64
import json
import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.support.apache_kafka.process import free_ports
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.client.certificate import CERTIFICATE, KEY
from tests.support.waiting import PATIENCE_SECONDS

USER = "alice"
PASSWORD = "pa,ss=word"
TRICKY_USER = "al=i,ce"
"""Has what means something in SCRAM; there is none of that name in PLAIN."""

_LOGIN = "org.apache.kafka.common.security"


class SecureKafka(ApacheKafka):
    """Apache Kafka whose listener ``secure`` takes every mechanism over TLS.

    :param home: an empty directory.
    :param session_ms: connections.max.reauth.ms of that listener.
    """

    def __init__(self, home: Path, session_ms: int) -> None:
        (port,) = free_ports(1)
        self.secure = f"localhost:{port}"
        self.certificate = home / "certificate.pem"
        home.mkdir(parents=True)
        self.certificate.write_text(CERTIFICATE)
        (home / "keystore.pem").write_text(KEY + CERTIFICATE)
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(home / "keystore.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "plain.sasl.jaas.config": f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            "scram-sha-256.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
            "scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
            "oauthbearer.sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            "connections.max.reauth.ms": str(session_ms),
        }
        super().__init__(
            home,
            {f"listener.name.secure.{name}": value for name, value in settings.items()},
            also={
                "listeners": f"SECURE://127.0.0.1:{port}",
                "advertised.listeners": f"SECURE://{self.secure}",
                "listener.security.protocol.map": "SECURE:SASL_SSL",
            },
        )

    def start(self) -> "SecureKafka":
        """Start it, and give the users a password for SCRAM."""
        super().start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            for user in (USER, TRICKY_USER):
                changes = [UserScramCredentialUpsertion(user, info, PASSWORD.encode())]
                for future in admin.alter_user_scram_credentials(changes).values():
                    future.result(PATIENCE_SECONDS)
        return self

    @property
    def config(self) -> dict[str, Any]:
        """A client's settings for the secure listener, without a mechanism."""
        return {
            "bootstrap.servers": self.secure,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificate),
        }


def unsecured_token(lifetime: float = 3600, issued_at: float | None = None) -> tuple[str, float]:
    """A token of no signature, as Kafka's own validator takes it in development, and its expiry."""
    now = time.time() if issued_at is None else issued_at
    claims = {"sub": "alice", "iat": now, "exp": now + lifetime}
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)
    )
    return ".".join([*parts, ""]), now + lifetime
