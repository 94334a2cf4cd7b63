"""The account that a database server runs under: none of the servers runs as root."""

import os
import pwd


def server_user(*candidates: str) -> str | None:
    """The first of ``candidates`` that this machine knows; None for the present user, unless that is root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in candidates if name in known)
