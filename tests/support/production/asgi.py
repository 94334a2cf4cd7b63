"""One request to an ASGI application, without a server: what each message of the answer finds done is seen."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

SECONDS = 60.0


class Answer(NamedTuple):
    status: int
    body: Any


async def request(
    app: Any, method: str, path: str, body: Any = None, at_start: Callable[[], object] = lambda: None
) -> Answer:
    """Send a request; an exception of the application is raised, after its answer was sent.

    :param at_start: called when the answer begins to be sent.
    """
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "server": ("test", 80),
        "client": ("test", 1),
        "state": {},
    }
    sent: list[Any] = []

    said: list[str] = []

    async def receive() -> Any:
        if said:
            await asyncio.Event().wait()  # the client stays
        said.append(method)
        return {"type": "http.request", "body": b"" if body is None else json.dumps(body).encode(), "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            at_start()
        sent.append(message)

    await app(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], json.loads(content))


def call(app: Any, method: str, path: str, body: Any = None, **options: Any) -> Answer:
    """As :func:`request`, in an event loop of its own."""
    return asyncio.run(asyncio.wait_for(request(app, method, path, body, **options), SECONDS))
