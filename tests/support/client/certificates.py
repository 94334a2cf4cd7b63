"""Certificates that a test makes as it needs them: an authority, and what it signs, good or with one thing wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LONG = timedelta(days=36_500)
LOCAL = ("localhost", "127.0.0.1")


def _pem_of(key: ec.EllipticCurvePrivateKey, password: str | None) -> str:
    encryption: serialization.KeySerializationEncryption = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password.encode())
    )
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, encryption).decode()


def named(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """A distinguished name, from the most general attribute to the most specific one."""
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, in PEM form."""

    certificate: str
    private: ec.EllipticCurvePrivateKey

    def key(self, password: str | None = None) -> str:
        """The private key, encrypted if there is a password."""
        return _pem_of(self.private, password)

    def der(self) -> bytes:
        """The certificate in DER form."""
        return x509.load_pem_x509_certificate(self.certificate.encode()).public_bytes(serialization.Encoding.DER)

    def in_one(self, path: Path, password: str | None = None) -> str:
        """A file with the key and the certificate, as ssl.keystore.location wants it."""
        path.write_text(self.key(password) + self.certificate)
        return str(path)

    def in_two(self, directory: Path, name: str) -> tuple[str, str]:
        """The files of the certificate and of its key, as most clients want them."""
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        certificate.write_text(self.certificate)
        key.write_text(self.key())
        return str(certificate), str(key)


class Authority:
    """An authority that signs certificates."""

    def __init__(self, name: str = "tests") -> None:
        self._name = named((NameOID.COMMON_NAME, name))
        self._key = ec.generate_private_key(ec.SECP256R1())

    @cached_property
    def certificate(self) -> str:
        """The authority's own certificate."""
        return self._sign(self._name, self._key.public_key(), _LONG, [_CA, _KEY_USAGE])

    def file(self, path: Path) -> str:
        """A file with the authority's certificate."""
        path.write_text(self.certificate)
        return str(path)

    def issue(
        self,
        name: str | x509.Name = "broker",
        hosts: Sequence[str] = LOCAL,
        valid: timedelta = _LONG,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Issued:
        """A certificate. It has expired if ``valid`` is negative."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = named((NameOID.COMMON_NAME, name)) if isinstance(name, str) else name
        names = [x509.IPAddress(ip_address(host)) if host[0].isdecimal() else x509.DNSName(host) for host in hosts]
        extensions: list[x509.ExtensionType] = [x509.SubjectAlternativeName(names)] if names else []
        return Issued(self._sign(subject, key.public_key(), valid, extensions), key)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        valid: timedelta,
        extensions: Sequence[x509.ExtensionType],
    ) -> str:
        now = datetime.now(timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=400))
            .not_valid_after(now + valid)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


_CA = x509.BasicConstraints(ca=True, path_length=None)
_KEY_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
EXPIRED = timedelta(days=-1)
