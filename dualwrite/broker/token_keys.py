"""The public keys that verify access tokens: a JWK Set (RFC 7517) in a file or at a URL, read again now and then.

A key id that is not known makes the broker read the set again, but not more often than every few seconds: anyone can
send such a token. Source: KIP-768; Kafka's RefreshingHttpsJwks and JwksFileVerificationKeyResolver.
"""

import http.client
import json
import logging
import queue
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from dualwrite.broker.access.oauth_tokens import InvalidTokenError, TokenRules, ValidToken, check_token, read_header
from dualwrite.broker.settings.sasl_settings import JWKS_URL
from dualwrite.errors import ConfigurationError
from dualwrite.ports import Clock

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0
"""For the connection and for each part of the answer."""
_LONGEST_SECONDS = 15.0
"""For the whole answer: a server may send it byte by byte."""
_PART_BYTES = 64 * 1024
_MOST_BYTES = 1024 * 1024
_LEAST_SECONDS_BETWEEN = 10.0
"""The least time between two readings because of unknown key ids."""

_FAILURES = (OSError, ValueError, http.client.HTTPException)

Key = Mapping[str, Any]


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but from https to https alone: an answer over http can be changed on its way."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request for ``newurl``.

        :raises ValueError: if it is less secure than the one before, or no URL of HTTP.
        """
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme != "https" and (scheme != "http" or req.type == "https"):
            raise ValueError(f"it redirects from {req.type} to {scheme!r}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_open = urllib.request.build_opener(_SafeRedirects).open


class TokenKeys:
    """The keys of one JWK Set. Threads may share it.

    :param url: ``file:``, ``http:`` or ``https:``.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self._clock = clock
        self._keys: tuple[Key, ...] = ()
        self._read_at = -_LEAST_SECONDS_BETWEEN
        self._reading = threading.Lock()
        self._answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        """For the reading in progress, or the last one."""
        self._is_closed = False

    def close(self) -> None:
        """Wait for no answer: the broker stops."""
        self._is_closed = True
        self._answers.put(_stopped())

    def load(self) -> None:
        """Read the set for the first time. A server that does not answer is tried again later.

        :raises ConfigurationError: if it is a file that cannot be used.
        """
        try:
            self._read()
        except _FAILURES as error:
            if urllib.parse.urlsplit(self.url).scheme == "file":
                raise ConfigurationError(f"broker setting {JWKS_URL}={_shown(self.url)}: {_why(error)}") from None
            logger.warning("%s", self._failure_message(error))

    def refresh(self) -> None:
        """Read the set again. The present keys remain if that fails."""
        with self._reading:
            self._read_again()

    def key(self, key_id: str | None) -> Key | None:
        """The key with ``key_id``; without an id, the only key. Reads the set again if there is none, unless another
        thread does so or it was read a moment ago."""
        key = self._find(key_id)
        if key is not None or not self._reading.acquire(blocking=False):
            return key
        try:
            if self._clock.monotonic() - self._read_at >= _LEAST_SECONDS_BETWEEN:
                self._read_again()
        finally:
            self._reading.release()
        return self._find(key_id)

    def _find(self, key_id: str | None) -> Key | None:
        keys = self._keys
        if key_id is None:
            return keys[0] if len(keys) == 1 else None
        return next((key for key in keys if key.get("kid") == key_id), None)

    def _read_again(self) -> None:
        try:
            self._read()
        except _FAILURES as error:
            if not self._is_closed:
                logger.warning("%s", self._failure_message(error))

    def _read(self) -> None:
        """Read the set, in a thread that does not hold up the end of the process."""
        self._read_at = self._clock.monotonic()
        self._answers = answers = queue.SimpleQueue[bytes | Exception]()
        if self._is_closed:  # after that: close() answers in this queue, or is seen here
            raise _stopped()
        threading.Thread(target=self._ask, args=(answers,), name="token-keys", daemon=True).start()
        answer = answers.get()
        try:
            if isinstance(answer, Exception):
                raise answer
            self._keys = _keys_in(answer)
        finally:
            del answer  # an error refers to this frame, and may hold a connection open

    def _ask(self, answers: "queue.SimpleQueue[bytes | Exception]") -> None:
        try:
            answers.put(self._content())
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            answers.put(error)

    def _content(self) -> bytes:
        request = urllib.request.Request(self.url, headers={"Accept": "application/json"})  # noqa: S310  checked setting
        with _open(request, timeout=_TIMEOUT_SECONDS) as response:
            content = bytearray()
            while part := response.read1(_PART_BYTES):
                content += part
                if len(content) > _MOST_BYTES:
                    raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
                if self._clock.monotonic() - self._read_at > _LONGEST_SECONDS:
                    raise ValueError(f"it is not complete after {_LONGEST_SECONDS:.0f} seconds")
        return bytes(content)

    def _failure_message(self, error: Exception) -> str:
        remaining = f"the {len(self._keys)} known keys remain" if self._keys else "no token can be verified until then"
        return f"cannot read {JWKS_URL}={_shown(self.url)}: {_why(error)}; will try again, {remaining}"


class TokenVerifier:
    """Checks access tokens by the keys of one JWK Set. Threads may share it.

    :param keys: the keys; None if only unsecured tokens are accepted.
    """

    def __init__(self, rules: TokenRules, keys: TokenKeys | None, clock: Clock) -> None:
        self._rules = rules
        self._keys = keys
        self._clock = clock

    def __call__(self, token: str) -> ValidToken:
        """Accept ``token``. It may wait for the keys.

        :raises InvalidTokenError: if the token is not accepted.
        """
        header = read_header(token)
        key = None
        if not header.is_unsecured:
            if self._keys is None:
                raise InvalidTokenError(f"it is signed, and {JWKS_URL} is not set")
            key = self._keys.key(header.key_id)
        return check_token(token, key, self._rules, self._clock.wall_ms())


def _stopped() -> InterruptedError:
    return InterruptedError("the broker stops")


def _keys_in(content: bytes) -> tuple[Key, ...]:
    """The keys of a JWK Set.

    :raises ValueError: if it is none.
    """
    try:
        keys = json.loads(content)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("it is not a JWK Set: expected JSON with a list of keys") from None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise ValueError("it is not a JWK Set: its keys are not a list of objects")
    return tuple(keys)


def _shown(url: str) -> str:
    """``url`` without a user, a password and a query, which may have a key of the server."""
    parts = urllib.parse.urlsplit(url)
    query = "…" if parts.query else ""
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query, fragment=""))


def _why(error: Exception) -> str:
    """The reason in one line."""
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "the answer is not HTTP"
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(reason, "strerror", None) or reason)
