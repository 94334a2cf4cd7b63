"""A web site of somebody else, whose pages a browser loads beside the console's."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class OtherSite:
    """Its pages, by path; they may be changed while it is served."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pages: dict[str, str] = {}
        self.asked: list[str] = []
        """The paths that were asked for."""


@contextmanager
def other_site(pages: Mapping[str, str] | None = None) -> Iterator[OtherSite]:
    """Serve ``pages``, at a name that is another site than 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            page = site.pages.get(self.path)
            body = (page or "").encode()
            self.send_response(404 if page is None else 200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = OtherSite(f"http://localhost:{server.server_port}/")
    site.pages.update(pages or {})
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
