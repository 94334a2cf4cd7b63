"""A broker and a database with the state tables, and the console in front of both."""

from tests.support.operations.fixtures import broker, site

__all__ = ["broker", "site"]
