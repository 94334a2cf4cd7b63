"""Why an address cannot be listened at, and what to do."""

from errno import EADDRINUSE


def bind_refusal(error: OSError, option: str) -> str:
    """The system's reason for ``error``, and a way out if the port is in use.

    :param option: of the command line, which chooses the port.
    """
    if error.errno != EADDRINUSE:
        return str(error.strerror)
    return f"{error.strerror}; stop the program that has this port, or choose another one with {option} (0: a free one)"
