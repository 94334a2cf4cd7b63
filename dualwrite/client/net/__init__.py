"""Connections to one broker: sockets, TLS, SASL."""

# First, as kafka-python (for SASL) warns at its first import, and this module silences it.
import dualwrite.wire  # noqa: F401
