"""One request to an ASGI application, without a server."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, NamedTuple


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
    given = {"host": "127.0.0.1:8939", **(headers or {})}
    path_only, _, query = path.partition("?")
    scope = {
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
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start = next(message for message in sent if message["type"] == "http.response.start")
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return AsgiAnswer(
        start["status"], {key.decode().lower(): value.decode() for key, value in start["headers"]}, content.decode()
    )
