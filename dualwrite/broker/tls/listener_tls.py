"""TLS of one listener: the context of new connections, renewed when its files change, and clients' principals."""

import logging
from pathlib import Path

from dualwrite.broker.access.distinguished_names import CertificateError, subject_of
from dualwrite.broker.access.principal_mapping import MappingRuleError, NoMatchingRuleError, PrincipalMapping
from dualwrite.broker.api.context import ANONYMOUS
from dualwrite.broker.clients.listeners import Listener
from dualwrite.broker.net.frame_stream import FrameStream
from dualwrite.broker.settings.listener_settings import ListenerValues
from dualwrite.broker.tls.context import files_of, server_context
from dualwrite.broker.tls.transport import RECEIVE_BYTES, TlsHandshakeError, TlsTransport
from dualwrite.errors import ConfigurationError

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""How long a client may take for its handshake."""

_Look = tuple[tuple[int, int, int] | None, ...]
"""The modification time, inode and size of each file; None for one that is missing."""


class ListenerTls:
    """Makes the connections of one listener encrypted ones.

    :param values: the listener's settings.
    :raises ConfigurationError: if a setting is invalid, or a file cannot be used.
    """

    def __init__(self, listener: Listener, values: ListenerValues) -> None:
        self._listener = listener
        self._values = values
        rules = values.text("ssl.principal.mapping.rules") or ""
        try:
            self._mapping = PrincipalMapping(rules)
        except MappingRuleError as error:
            raise ConfigurationError(f"listener {listener.name}: ssl.principal.mapping.rules: {error}") from None
        self._files = files_of(values)
        self._seen = _look(self._files)  # before the files are read: a change in between is noticed
        self._context = server_context(listener, values)
        self._received = memoryview(bytearray(RECEIVE_BYTES))

    def transport(self, stream: FrameStream) -> TlsTransport:
        """The protocol of a new connection, which decrypts for ``stream``."""
        return TlsTransport(self._context, self._listener.protocol.value, stream, self._received)

    async def handshake(self, transport: TlsTransport) -> str:
        """Wait for the handshake, and return the client's principal. With SASL the client names it later.

        :raises TlsHandshakeError: if the handshake fails, or no rule maps the certificate's name to a principal.
        """
        await transport.handshake(HANDSHAKE_SECONDS)
        certificate = transport.peer_certificate
        if certificate is None or self._listener.protocol.is_sasl:
            return ANONYMOUS
        try:
            return f"User:{self._mapping.name_of(subject_of(certificate))}"
        except (CertificateError, NoMatchingRuleError) as error:
            raise TlsHandshakeError(str(error)) from None

    def renew(self, *, even_if_unchanged: bool = False) -> None:
        """Read the files again if they have changed, for connections from now on. If their new content cannot be used,
        log it once and keep the context."""
        seen = _look(self._files)
        if seen == self._seen and not even_if_unchanged:
            return
        self._seen = seen
        try:
            self._context = server_context(self._listener, self._values)
        except ConfigurationError as error:
            logger.error("keeping the earlier certificate: %s", error)
        else:
            logger.info("listener %s has read its certificates again", self._listener.name)


def _look(files: list[Path]) -> _Look:
    looks: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
            looks.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:  # to read it says why
            looks.append(None)
    return tuple(looks)
