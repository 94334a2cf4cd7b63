"""When librdkafka connects to the brokers."""

from typing import Final

CONNECT_AT_ONCE: Final = {"enable.sparse.connections": "false"}
"""For a client of librdkafka that needs its brokers soon, or all of them.

By default librdkafka drops the connection to the bootstrap server when it learns which broker that is, and connects to
the broker itself when a timer of half a second says so. Measured with librdkafka 2.16: a new transactional producer is
ready after 50 to 500 ms, with this setting after 5."""
