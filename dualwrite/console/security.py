"""What stands before the console's pages: the headers of every answer, the check of the Host header, and the password.

Each is an ASGI middleware, as it must see answers that are streams.
"""

import base64
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextvars import ContextVar
from ipaddress import IPv6Address, ip_address
from time import monotonic
from typing import Any

from dualwrite.errors import ConfigurationError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = (
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""No inline script or style, and nothing from another host; no page may frame this one, or read it from a cache. With
the referrer policy ``no-referrer`` a browser would name no origin in the console's own forms."""

SHORTEST_PASSWORD = 12
MOST_FAILURES = 5
LOCK_SECONDS = 30.0
"""After MOST_FAILURES wrong passwords from one address, the address waits for LOCK_SECONDS, right password or not."""

MOST_ADDRESSES = 1024
"""The most addresses whose failures are remembered; the oldest are forgotten first."""

operator_name: ContextVar[str] = ContextVar("dualwrite_operator", default="")
"""The user name that came with the password: the operator's own name, which the forms suggest."""


class SecurityHeaders:
    """Adds HEADERS to each answer."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        own = {name for name, _ in HEADERS}

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                others = [header for header in message.get("headers", ()) if header[0].lower() not in own]
                message = {**message, "headers": [*others, *HEADERS]}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class HostCheck:
    """Refuses requests for host names that are not the console's own.

    A page of another site can have its own name resolved to this machine (DNS rebinding), and would then read the
    answers. Its requests name that host. An address, which no one can rebind, is always accepted.

    :param names: further host names; ``*`` for any.
    """

    def __init__(self, app: Application, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and not self._is_own(_header(scope, b"host")):
            await refuse(send, 421, "this is not a host name of the console: name it with --allowed-host")
            return
        await self._app(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        name = host_name(host)
        return bool(name) and ("*" in self._names or name in self._names or _is_address(name))


class PasswordCheck:
    """Asks for the password by HTTP's Basic authentication, with any user name.

    :param password: SHORTEST_PASSWORD characters or more.
    :param clock: in seconds.
    :raises ConfigurationError: if the password is too short.
    """

    def __init__(self, app: Application, password: str, clock: Callable[[], float] = monotonic) -> None:
        if len(password) < SHORTEST_PASSWORD:
            raise ConfigurationError(f"the console's password is too short: use {SHORTEST_PASSWORD} characters or more")
        self._app = app
        self._digest = _digest(password)
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = _network(scope)
        wait = self._wait(address)
        if wait > 0:
            headers = ((b"retry-after", str(int(wait) + 1).encode()),)
            await refuse(send, 429, "too many wrong passwords: try again later", headers)
            return
        credentials = _credentials(_header(scope, b"authorization"))
        if credentials is None or not hmac.compare_digest(_digest(credentials[1]), self._digest):
            if credentials is not None:
                self._note_failure(address)
            headers = ((b"www-authenticate", b'Basic realm="dualwrite console", charset="UTF-8"'),)
            await refuse(send, 401, "the console needs your name and its password", headers)
            return
        self._failures.pop(address, None)
        operator_name.set(credentials[0])
        await self._app(scope, receive, send)

    @property
    def remembered(self) -> int:
        """How many addresses have given a wrong password, and are remembered."""
        return len(self._failures)

    def _wait(self, address: str) -> float:
        count, last = self._failures.get(address, (0, 0.0))
        if count < MOST_FAILURES:
            return 0.0
        left = last + LOCK_SECONDS - self._clock()
        if left <= 0:
            self._failures.pop(address, None)
        return left

    def _note_failure(self, address: str) -> None:
        count, _ = self._failures.pop(address, (0, 0.0))
        self._failures[address] = (count + 1, self._clock())
        while len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)


async def refuse(send: Send, status: int, message: str, headers: Collection[tuple[bytes, bytes]] = ()) -> None:
    """Answer with one line of text."""
    body = f"{message}\n".encode()
    start = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def host_name(host: str) -> str:
    """The host's name in a Host header or an authority, without its port; empty if it is malformed."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name.lower() if bracket and (not port or port.startswith(":")) else ""
    name, _, port = host.partition(":")
    return "" if ":" in port else name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _header(scope: Scope, name: bytes) -> str:
    """The only header ``name``; empty if there is none, or more than one."""
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return str(values[0], "latin-1") if len(values) == 1 else ""


def _credentials(header: str) -> tuple[str, str] | None:
    """The name and the password of a Basic Authorization header; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:  # not Base64, not ASCII before it was decoded, or not UTF-8 after
        return None
    return (name, password) if colon else None


def _digest(password: str) -> bytes:
    """Of one length, so that the comparison tells nothing about the password's."""
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()


def _network(scope: Scope) -> str:
    """The client's address; of IPv6 the network of 64 bits, in which a client may choose its addresses."""
    client = scope.get("client")
    if not client:
        return ""
    try:
        address = ip_address(client[0].partition("%")[0])
    except ValueError:
        return str(client[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return address.packed[:8].hex()
    return str(address)
