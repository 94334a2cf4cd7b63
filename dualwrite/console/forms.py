"""Forms that change something: a token that other sites cannot know, and plans that can be carried out once."""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic
from urllib.parse import parse_qs, urlsplit

from dualwrite.console.acting import ActionPlan
from dualwrite.errors import InputError
from dualwrite.extras import brought_by

with brought_by("console"):
    from starlette.requests import Request

MOST_BYTES = 262_144
MOST_FIELDS = 1000
MOST_PLANS = 256
PLAN_SECONDS = 600.0
"""A plan is forgotten after this time, and the oldest ones beyond MOST_PLANS."""

TOKEN_FIELD = "csrf_token"  # noqa: S105  the name of a field


Form = Mapping[str, list[str]]
"""The values of a form's fields."""


class ForgedRequestError(InputError):
    """A form came from another site, or from a page of an earlier console."""


class Forms:
    """Reads forms, and refuses those of other sites."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)

    async def read(self, request: Request) -> Form:
        """The fields of a form of the console's own page.

        :raises ForgedRequestError: if it is not.
        :raises InputError: if it is too large, or no form.
        """
        self._require_own_site(request)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise InputError(f"the form has more than {MOST_BYTES} bytes")
        try:
            form = parse_qs(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
        except ValueError:
            raise InputError("this is not a form of the console") from None
        token = value_of(form, TOKEN_FIELD)
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise ForgedRequestError("the form is not of this console: load the page again")
        return form

    @staticmethod
    def _require_own_site(request: Request) -> None:
        """Refuse what a browser says comes from another site. The token is what counts."""
        site = request.headers.get("sec-fetch-site", "same-origin")
        origin = request.headers.get("origin")
        has_other_origin = origin is not None and _host_of(origin) != request.headers.get("host", "").lower()
        if site not in ("same-origin", "none") or has_other_origin:
            raise ForgedRequestError("the form came from another site")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
            raise InputError("this is not a form of the console")


def value_of(form: Form, field: str) -> str:
    """The first value of ``field``; empty if there is none."""
    return form.get(field, [""])[0]


def _host_of(origin: str) -> str | None:
    """The host and the port of an origin; None if it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


class PlannedActions:
    """Plans that were shown, each of which can be carried out once: a reload of the result repeats nothing.

    :param clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._plans: OrderedDict[str, tuple[float, ActionPlan]] = OrderedDict()

    def keep(self, plan: ActionPlan) -> str:
        """Keep ``plan``; return the key that takes it."""
        key = secrets.token_urlsafe(16)
        self._plans[key] = (self._clock(), plan)
        while len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)
        return key

    def take(self, key: str) -> ActionPlan:
        """The plan of ``key``, which is forgotten.

        :raises InputError: if it was taken before, or forgotten.
        """
        made_at, plan = self._plans.pop(key, (float("-inf"), None))
        if plan is None or self._clock() - made_at > PLAN_SECONDS:
            raise InputError("nothing was done: this plan was carried out already, or is too old: plan it again")
        return plan
