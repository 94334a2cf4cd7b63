"""Requests to an ASGI application, without a server."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SECONDS = 60
"""The most that a change of a live page may take."""


class AsgiAnswer(NamedTuple):
    """What the application sent."""

    status: int
    headers: dict[str, str]
    body: str


def basic(name: str, password: str) -> str:
    """The value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def requested(
    app: Any,
    path: str = "/",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    client: tuple[str, int] | None = ("127.0.0.1", 5),
    extra: tuple[tuple[bytes, bytes], ...] = (),
) -> AsgiAnswer:
    """The answer of ``app``, in an event loop of its own."""
    scope = scope_of(path, method=method, headers=headers, client=client, extra=extra)
    return asyncio.run(answered(app, scope, body))


def scope_of(
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    client: tuple[str, int] | None = ("127.0.0.1", 5),
    extra: tuple[tuple[bytes, bytes], ...] = (),
) -> dict[str, Any]:
    """The scope of a request."""
    given = {"host": "127.0.0.1:8939", **(headers or {})}
    path_only, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path_only,
        "raw_path": path_only.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(key.lower().encode(), value.encode("latin-1")) for key, value in given.items()] + list(extra),
        "client": client,
        "server": ("127.0.0.1", 8939),
    }


async def answered(app: Any, scope: dict[str, Any], body: bytes = b"") -> AsgiAnswer:
    """The answer of ``app``, in this event loop."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    names = [key.lower() for key, _ in start["headers"]]
    assert len(set(names)) == len(names), f"a header is there twice: {names}"
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return AsgiAnswer(
        start["status"], {key.decode().lower(): value.decode() for key, value in start["headers"]}, content.decode()
    )


class LiveReader:
    """A request for the live events, which stays until it leaves. It needs a running event loop."""

    def __init__(self, app: Any, path: str = "/events", headers: Mapping[str, str] | None = None) -> None:
        self._leaves = asyncio.Event()
        self._changed = asyncio.Event()
        self._app = app
        self._scope = {**scope_of(path, headers=headers), "asgi": {"version": "3.0", "spec_version": "2.3"}}
        """As uvicorn makes it: with this version an application listens for the end of its client."""
        self.status = 0
        self.text = ""
        """All that was sent so far."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def begun(self) -> int:
        """The status of the answer, once there is one."""
        await self._until(lambda: self.status != 0)
        return self.status

    async def shows(self, text: str) -> None:
        """Wait until ``text`` was sent."""
        await self._until(lambda: text in self.text)

    async def leave(self) -> None:
        """As a browser whose tab is closed."""
        self._leaves.set()
        await self._task

    async def _until(self, is_it: Callable[[], bool]) -> None:
        while not is_it():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), SECONDS)

    async def _run(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()
        self._changed.set()
