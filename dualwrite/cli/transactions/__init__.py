"""``dualwrite transactions``."""

from dualwrite.cli.transactions.actions import configure, run

__all__ = ["configure", "run"]
