"""examples/faststream_shipments.py, which may be struck.

It is struck in the middle of the unit of work of an order (``within-NUMBER``), or when the unit has ended and
FastStream has not polled again (``behind-KEY``).
"""

from typing import Any

from faststream import BaseMiddleware

from examples.faststream_shipments import broker, main
from tests.support.examples.strikes import strike, strike_after_inserts


class StrikingMiddleware(BaseMiddleware):
    """Around the example's own middleware."""

    async def after_processed(self, *_: Any) -> bool:
        """The unit of work has ended."""
        strike(f"behind-{self.msg.key().decode()}")
        return False


broker.insert_middleware(StrikingMiddleware)
strike_after_inserts("packed_orders", "within")
main()
