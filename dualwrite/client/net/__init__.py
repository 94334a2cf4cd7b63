"""Connections to one broker: sockets, TLS, SASL."""

# Imported first: kafka-python (for SASL) warns at its first import, and this module silences the warning.
import dualwrite.wire  # noqa: F401
