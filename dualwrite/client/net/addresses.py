"""The order in which the addresses of a broker's name are tried.

An address may accept a connection and lead to no broker: a proxy whose broker is down hangs up. The attempt ends then,
and the next one begins with the address after it, as in librdkafka and in the Java client. Otherwise the first address
would be tried for ever.
"""

from collections.abc import Iterable
from typing import Any

from dualwrite.client.terms.endpoint import Endpoint

_led_nowhere: dict[Endpoint, Any] = {}
"""By broker: the last address that accepted a connection which could not be opened further."""


def in_order(endpoint: Endpoint, found: Iterable[Any]) -> list[Any]:
    """What getaddrinfo has ``found``, in the order in which to try it."""
    addresses = list(found)
    last = _led_nowhere.get(endpoint)
    places = [place for place, (*_, address) in enumerate(addresses, 1) if address == last]
    return addresses[places[-1] :] + addresses[: places[-1]] if places else addresses


def led_nowhere(endpoint: Endpoint, address: Any) -> None:
    """Note that ``address`` accepted a connection, and that it could not be opened further."""
    _led_nowhere[endpoint] = address
