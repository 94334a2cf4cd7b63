"""The console of this process, served by a thread of it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from dualwrite.console.app import Console


@contextmanager
def served_by_thread(console: Console) -> Iterator[str]:
    """Serve ``console``; yield its URL."""

    class EndingServer(uvicorn.Server):
        """Ends the live pages first, as ``dualwrite console`` does."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            console.close()
            await super().shutdown(sockets)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = EndingServer(uvicorn.Config(console, log_level="error", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()
