"""Forms of other sites are refused, and a plan is carried out once."""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from dualwrite.console.acting import ActionPlan
from dualwrite.console.forms import (
    MOST_BYTES,
    MOST_PLANS,
    PLAN_SECONDS,
    ForgedRequestError,
    Forms,
    PlannedActions,
    value_of,
)
from dualwrite.errors import InputError

FORM = "application/x-www-form-urlencoded"
PLAN = ActionPlan("resolve", ("a-0",), ("a-0: would commit",), "", "dualwrite …")


def read(forms: Forms, body: bytes, headers: Mapping[str, str] | None = None) -> Mapping[str, list[str]]:
    given = {"host": "localhost:8939", "content-type": FORM, **(headers or {})}
    scope = {"type": "http", "method": "POST", "headers": [(k.encode(), v.encode()) for k, v in given.items()]}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    return asyncio.run(forms.read(Request(scope, receive)))


def body_of(forms: Forms, **fields: str) -> bytes:
    return urlencode({"csrf_token": forms.token, **fields}).encode()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:8939"},
        {"origin": "http://LOCALHOST:8939", "sec-fetch-site": "same-origin"},
        {"content-type": f"{FORM}; charset=utf-8"},
    ],
)
def test_a_form_of_the_own_page_is_read(headers: Mapping[str, str]) -> None:
    forms = Forms()
    form = read(forms, body_of(forms, by="Ann Ö", empty=""), headers)
    assert (value_of(form, "by"), value_of(form, "empty"), value_of(form, "none")) == ("Ann Ö", "", "")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://localhost:8940"},
        {"origin": "http://localhost:8939.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_refused_even_with_the_token(headers: Mapping[str, str]) -> None:
    forms = Forms()
    with pytest.raises(ForgedRequestError, match="another site"):
        read(forms, body_of(forms), headers)


@pytest.mark.parametrize("token", ["", "x", "ü", Forms().token], ids=["none", "short", "not ASCII", "another's"])
def test_a_form_without_this_console_s_token_is_refused(token: str) -> None:
    forms = Forms()
    with pytest.raises(ForgedRequestError, match="load the page again"):
        read(forms, urlencode({"csrf_token": token}).encode())
    with pytest.raises(ForgedRequestError, match="load the page again"):
        read(forms, b"by=Ann")


def test_a_token_is_long_and_drawn_for_each_console() -> None:
    tokens = {Forms().token for _ in range(10)}
    assert len(tokens) == 10
    assert min(map(len, tokens)) >= 40


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{}", {"content-type": "application/json"}),
        (b"csrf_token=\xff", {}),
        (b"csrf_token=%ff", {}),
        (b"a=1&" * 2000, {}),
        (b"a=1", {"content-type": "text/plain"}),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, headers: Mapping[str, str]) -> None:
    with pytest.raises(InputError, match="not a form of the console"):
        read(Forms(), body, headers)


def test_a_form_is_read_up_to_a_limit() -> None:
    with pytest.raises(InputError, match=f"more than {MOST_BYTES} bytes"):
        read(Forms(), b"a" * (MOST_BYTES + 1))


def test_a_form_without_an_end_is_refused_as_soon_as_it_is_too_large() -> None:
    parts = [b"a" * (MOST_BYTES // 2)] * 3

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": parts.pop(), "more_body": True}

    headers = [(b"host", b"localhost:8939"), (b"content-type", FORM.encode())]
    with pytest.raises(InputError, match=f"more than {MOST_BYTES} bytes"):
        asyncio.run(Forms().read(Request({"type": "http", "method": "POST", "headers": headers}, receive)))


def test_the_time_of_a_token_s_comparison_says_nothing_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, own: bytes) -> bool:
        compared.append(given)
        return given == own

    monkeypatch.setattr("dualwrite.console.forms.hmac.compare_digest", compare)
    forms = Forms()
    read(forms, body_of(forms))
    with pytest.raises(ForgedRequestError):
        read(forms, b"csrf_token=guess")
    assert compared == [forms.token.encode(), b"guess"]


def test_a_plan_is_carried_out_once() -> None:
    planned = PlannedActions()
    key = planned.keep(PLAN)
    assert planned.take(key) is PLAN
    for used in (key, "", "unknown"):
        with pytest.raises(InputError, match="nothing was done"):
            planned.take(used)


def test_an_old_plan_is_forgotten() -> None:
    now = [0.0]
    planned = PlannedActions(lambda: now[0])
    key, old = planned.keep(PLAN), planned.keep(PLAN)
    now[0] = PLAN_SECONDS
    assert planned.take(key) is PLAN
    now[0] += 0.1
    with pytest.raises(InputError, match="too old"):
        planned.take(old)


def test_plans_are_kept_up_to_a_limit() -> None:
    planned = PlannedActions()
    first, *_, last = [planned.keep(PLAN) for _ in range(MOST_PLANS + 1)]
    with pytest.raises(InputError):
        planned.take(first)
    assert planned.take(last) is PLAN
