"""TLS settings that are wrong: one line, which names the setting to correct."""

import errno
import os
from pathlib import Path

import pytest

from dualwrite.client.config.settings import TlsSettings
from dualwrite.client.net.tls import RenewedContext, ssl_context
from dualwrite.errors import ConfigurationError
from tests.support.client.certificate import ANOTHER_KEY, CERTIFICATE, ENCRYPTED_KEY, KEY

FILES = {
    "certificate.pem": CERTIFICATE,
    "key.pem": KEY,
    "both.pem": KEY + CERTIFICATE,
    "encrypted.pem": ENCRYPTED_KEY,
    "encrypted_both.pem": ENCRYPTED_KEY + CERTIFICATE,
    "another.pem": ANOTHER_KEY,
    "garbage.pem": "garbage",
    "broken.pem": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    "broken_key.pem": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "tls",
    [
        TlsSettings(ca_location="certificate.pem", ca_pem=CERTIFICATE),
        TlsSettings(ca_location="."),
        TlsSettings(certificate_location="certificate.pem", key_location="key.pem"),
        TlsSettings(certificate_location="both.pem"),
        TlsSettings(certificate_location="certificate.pem", key_location="encrypted.pem", key_password="pw"),
        TlsSettings(certificate_location="encrypted_both.pem", key_password="pw"),
    ],
)
def test_valid_tls_settings_are_accepted(home: Path, tls: TlsSettings) -> None:
    assert ssl_context(tls).check_hostname


def test_both_kinds_of_authorities_are_trusted_together(home: Path) -> None:
    assert len(ssl_context(TlsSettings(ca_location="certificate.pem", ca_pem=CERTIFICATE)).get_ca_certs()) == 1
    assert len(ssl_context(TlsSettings(ca_location="certificate.pem")).get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        (TlsSettings(ca_location="none.pem"), "ssl.ca.location none.pem: No such file or directory"),
        (TlsSettings(ca_location=os.devnull), "ssl.ca.location /dev/null: holds no certificate in PEM form"),
        (TlsSettings(ca_location="garbage.pem"), "ssl.ca.location garbage.pem: holds no certificate in PEM form"),
        (TlsSettings(ca_pem="garbage"), "ssl.ca.pem: holds no certificate in PEM form"),
        (TlsSettings(ca_pem="gärbage"), "ssl.ca.pem: holds no certificate in PEM form"),
        (
            TlsSettings(ca_location="certificate.pem", ca_pem="garbage"),
            "ssl.ca.pem: holds no certificate in PEM form",
        ),
        (
            TlsSettings(certificate_location="none.pem", key_location="key.pem"),
            "ssl.certificate.location none.pem: No such file or directory",
        ),
        (
            TlsSettings(certificate_location="certificate.pem", key_location="none.pem"),
            "ssl.key.location none.pem: No such file or directory",
        ),
        (
            TlsSettings(certificate_location="garbage.pem", key_location="key.pem"),
            "ssl.certificate.location garbage.pem: holds no certificate in PEM form",
        ),
        (
            TlsSettings(certificate_location="broken.pem", key_location="encrypted.pem", key_password="pw"),
            "ssl.certificate.location broken.pem: holds no certificate in PEM form",
        ),
        (
            TlsSettings(certificate_location="certificate.pem"),
            "ssl.certificate.location certificate.pem: holds no private key in PEM form, and ssl.key.location is not"
            " set",
        ),
        (
            TlsSettings(certificate_location="certificate.pem", key_location="garbage.pem"),
            "ssl.key.location garbage.pem: holds no private key in PEM form",
        ),
        (
            TlsSettings(certificate_location="certificate.pem", key_location="another.pem"),
            "ssl.key.location another.pem: not the private key of ssl.certificate.location certificate.pem",
        ),
        (
            TlsSettings(certificate_location="certificate.pem", key_location="encrypted.pem", key_password="SECRET"),
            "ssl.key.password: does not open the key in ssl.key.location encrypted.pem",
        ),
        (
            TlsSettings(certificate_location="certificate.pem", key_location="encrypted.pem"),
            "ssl.key.password: is not set, and is needed for the key in ssl.key.location encrypted.pem",
        ),
        (
            TlsSettings(certificate_location="encrypted_both.pem", key_password="S" * 2000),
            "ssl.key.password: does not open the key in ssl.certificate.location encrypted_both.pem",
        ),
    ],
)
def test_invalid_tls_settings_are_named(home: Path, tls: TlsSettings, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ssl_context(tls)
    assert str(caught.value) == said


def test_a_key_that_cannot_be_read_is_named_with_openssls_reason(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^ssl\.key\.location broken_key\.pem: holds no private key that can"):
        ssl_context(TlsSettings(certificate_location="certificate.pem", key_location="broken_key.pem"))


def test_a_context_is_made_anew_only_for_a_file_that_has_changed(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = RenewedContext(TlsSettings(certificate_location="certificate.pem", key_location="key.pem"))
    first = context.now()
    assert context.now() is first
    (home / "renewed.pem").write_text(ANOTHER_KEY)
    (home / "renewed.pem").rename(home / "key.pem")  # the certificate follows, perhaps a moment later
    assert context.now() is first
    assert context.now() is first
    assert len(caplog.messages) == 1, "one line for one change"
    assert "not the private key of" in caplog.messages[0]
    (home / "key.pem").unlink()
    assert context.now() is first
    (home / "key.pem").write_text(KEY)
    assert context.now() not in (first, None)
    assert RenewedContext(None).now() is None


def test_changed_files_are_tried_until_they_can_be_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewed key may be given to the service's user a moment later: its content stays as it is."""
    context = RenewedContext(TlsSettings(certificate_location="certificate.pem", key_location="key.pem"))
    first = context.now()
    (home / "renewed.pem").write_text(KEY)
    (home / "renewed.pem").rename(home / "key.pem")
    with monkeypatch.context() as forbidden:
        forbidden.setattr(Path, "read_bytes", refused)
        assert context.now() is first
    renewed = context.now()
    assert renewed not in (first, None)
    assert context.now() is renewed


def refused(_: Path) -> bytes:
    raise PermissionError(errno.EACCES, "Permission denied")
