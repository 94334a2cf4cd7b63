"""The console as an ASGI application, to serve by itself or to mount into an application's own."""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from sqlalchemy import Engine

from dualwrite.client.config.settings import ClientSettings
from dualwrite.console.acting import ActionDesk, ActionPlan
from dualwrite.console.commands import Commands
from dualwrite.console.forms import ForgedRequestError, Form, Forms, PlannedActions, value_of
from dualwrite.console.lag import look_at_lag
from dualwrite.console.looks import (
    Place,
    look_at_both,
    look_at_database,
    look_at_findings,
    look_at_kafka,
    look_at_spark,
)
from dualwrite.console.page import BOTH, DATABASE, DOCTOR, KAFKA, content
from dualwrite.console.plots import plots_of
from dualwrite.console.rendering import HOME, Templates, event
from dualwrite.console.security import (
    Application,
    HostCheck,
    PasswordCheck,
    Receive,
    Scope,
    SecurityHeaders,
    Send,
    operator_name,
)
from dualwrite.console.units import SECONDS_KEPT, ObservableUnits, UnitLog
from dualwrite.console.watching import LookAnswer, Part, Watch, in_thread, reason_of
from dualwrite.coordinator.rules.two_phase import TwoPhase
from dualwrite.coordinator.sql.dialects.url_text import url_text
from dualwrite.coordinator.sql.outcome_store import require_name
from dualwrite.errors import ConfigurationError, InputError
from dualwrite.extras import brought_by
from dualwrite.operations.wording import owner

with brought_by("console"):
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import BaseRoute, Mount, Route
    from starlette.staticfiles import StaticFiles

LOOK_SECONDS = 2.0
DOCTOR_SECONDS = 60.0
LAG_REST = 2.0
LAG, SPARK = "lag", "Spark"
LONG_SECONDS = 60.0
FIRST_SECONDS = 3.0
"""How long the page waits for the first answers before it is sent without them."""

MOST_STREAMS = 64
"""The most pages that are open at the same time."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Settings of the console.

    :param interval: seconds between two looks.
    :param long_seconds: a transaction that is open for longer is reported, although its owner is alive.
    :param actions: offer to resolve, to terminate and to acknowledge.
    """

    interval: float = LOOK_SECONDS
    long_seconds: float = LONG_SECONDS
    actions: bool = False


class _LivePage(StreamingResponse):
    """The events of one live page.

    :param ended: called once the page is gone, whether it has got an event or not.
    """

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


class Console:
    """The console's ASGI application; :func:`console_app` makes it."""

    def __init__(self, place: Place, settings: ConsoleSettings, dual_writes: Sequence[ObservableUnits] = ()) -> None:
        self._place = place
        self._settings = settings
        self._templates = Templates()
        self._commands = Commands(place.engine, place.kafka, place.two_phase)
        self._desk = ActionDesk(place, self._commands)
        self._forms = Forms()
        self._planned = PlannedActions()
        self._dual_writes = tuple(dual_writes)
        self._units = UnitLog()
        self._live_pages = 0
        self._sampled: deque[tuple[int, int]] = deque(maxlen=SECONDS_KEPT)
        for dual_write in self._dual_writes:
            dual_write.add_observer(self._units)
        self.watch = Watch(self._parts(), self._render)
        self._application: Application = Starlette(routes=self._routes())

    def protected(self, password: str | None, allowed_hosts: Collection[str]) -> None:
        """Put the password, the check of the Host header and the security headers before the pages."""
        if password is not None:
            self._application = PasswordCheck(self._application, password)
        self._application = SecurityHeaders(HostCheck(self._application, allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._application(scope, receive, send)

    def close(self) -> None:
        """End the live pages, so that a server can stop. Its next start needs another console."""
        self.watch.close()

    def _parts(self) -> list[Part]:
        """The looks. Those that ask more rest for longer."""
        interval = self._settings.interval
        looks: Mapping[str, tuple[Callable[[Place], object], float]] = {
            DATABASE: (look_at_database, interval),
            KAFKA: (look_at_kafka, interval),
            BOTH: (look_at_both, interval),
            LAG: (look_at_lag, interval * LAG_REST),
            SPARK: (look_at_spark, interval),
            DOCTOR: (look_at_findings, max(DOCTOR_SECONDS, interval)),
        }
        return [Part(name, partial(look, self._place), seconds) for name, (look, seconds) in looks.items()]

    def _routes(self) -> list[BaseRoute]:
        actions = [
            Route("/plan", self._form(self._plan), methods=["POST"]),
            Route("/run", self._form(self._run), methods=["POST"]),
        ]
        return [
            Route("/", self._page, name="page"),
            Route("/events", self._events, name="events"),
            Mount("/static", StaticFiles(directory=HOME / "static"), name="static"),
            *(actions if self._settings.actions else []),
        ]

    async def _page(self, request: Request) -> Response:
        sections = await self.watch.first_sections(FIRST_SECONDS, (DATABASE, KAFKA, BOTH))
        return HTMLResponse(
            self._templates.page(
                sections,
                database=url_text(self._place.engine.url),
                cluster=str(self._place.kafka.get("bootstrap.servers", "")),
                application=self._place.application,
            )
        )

    async def _events(self, request: Request) -> Response:
        if self._live_pages >= MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503)
        self._live_pages += 1  # here, and not once the first event is asked for: many requests may come at once
        return _LivePage(self._stream(), self._page_ended)

    def _page_ended(self) -> None:
        self._live_pages -= 1

    async def _stream(self) -> AsyncIterator[str]:
        """The sections that have changed since they were last sent here."""
        sent: dict[str, str] = {}
        async with contextlib.aclosing(self.watch.subscribe()) as news:
            async for sections in news:
                changed = {name: text for name, text in sections.items() if sent.get(name) != text}
                sent.update(changed)
                # Without a change a comment: only so a server notices that the reader is gone.
                yield "".join(event(name, text) for name, text in changed.items()) or ": no change\n\n"

    def _form(self, act: Callable[[Form], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that calls ``act`` with the fields of a form. What is refused becomes a page."""

        async def endpoint(request: Request) -> Response:
            try:
                return await act(await self._forms.read(request))
            except ForgedRequestError as error:
                return self._refused(str(error), 403)
            except InputError as error:
                return self._refused(str(error), 400)
            except Exception as error:  # noqa: BLE001  the page shows it
                return self._refused(reason_of(error), 409)

        return endpoint

    def _refused(self, message: str, status: int) -> Response:
        return HTMLResponse(self._templates.render("done", title="Refused", lines=(message,), is_bad=True), status)

    async def _plan(self, form: Form) -> Response:
        """Show what an action would do."""
        verb, targets = value_of(form, "verb"), form.get("target", [])
        plan = await in_thread(partial(self._desk.plan, verb, targets), "dualwrite console: plan")
        return HTMLResponse(
            self._templates.render(
                "plan",
                plan=plan,
                key=self._planned.keep(plan),
                token=self._forms.token,
                by=operator_name.get(),
            )
        )

    async def _run(self, form: Form) -> Response:
        """Carry out a plan that was shown."""
        by = value_of(form, "by")
        require_name(by, "by")
        plan: ActionPlan = self._planned.take(value_of(form, "plan"))
        result = await in_thread(partial(self._desk.run, plan, by), "dualwrite console: action")
        for part in self.watch.parts:
            self.watch.look_again(part.name)
        title = f"{plan.verb} by {by}"
        return HTMLResponse(self._templates.render("done", title=title, lines=result.lines, is_bad=result.is_bad))

    def _render(self, answers: Mapping[str, LookAnswer]) -> Mapping[str, str]:
        shown = content(
            answers,
            now=datetime.now(timezone.utc),
            long_seconds=self._settings.long_seconds,
            commands=self._commands,
        )
        token = self._forms.token if self._settings.actions else ""
        both = answers[BOTH].value
        owners = {} if both is None else {view.transactional_id: owner(view.row) for view in both.views if view.row}
        sections = {
            name: self._templates.render(name, content=shown, token=token) for name in ("sentence", "needs", "slots")
        }
        sections["lag"] = self._templates.render("lag", answer=answers[LAG], owners=owners)
        sections["spark"] = self._templates.render("spark", answer=answers[SPARK])
        if self._dual_writes:
            counters = [dual_write.counters for dual_write in self._dual_writes]
            self._sampled.append((sum(each.recoveries for each in counters), sum(each.replayed for each in counters)))
            plots = plots_of(self._units.history(), self._sampled)
            sections["plots"] = self._templates.render("plots", plots=plots)
            sections["units"] = self._templates.render("units", timelines=self._units.shown())
        sections["doctor"] = self._templates.render("doctor", answer=answers[DOCTOR], command=self._commands.doctor())
        return sections


def console_app(
    engine: Engine,
    kafka: Mapping[str, Any],
    *,
    application: str | None = None,
    two_phase: TwoPhase = "keep-prepared",
    actions: bool = False,
    dual_writes: Sequence[ObservableUnits] = (),
    password: str | None = None,
    anonymous: bool = False,
    allowed_hosts: Collection[str] = (),
    settings: ConsoleSettings | None = None,
) -> Console:
    """The console of a database and a cluster, as an ASGI application. Without ``actions`` it changes nothing.

    Mount it with a path that ends with a slash in the browser: its links are relative.

    :param engine: a blocking engine of the database.
    :param kafka: the configuration by librdkafka's names, as for DualWrite.
    :param application: show only the slots of this application; None for all.
    :param two_phase: the application's own mode, as for DualWrite.
    :param actions: True to offer what `dualwrite transactions` does: resolve, terminate, acknowledge.
    :param dual_writes: the DualWrites and AsyncDualWrites of this process whose rates, durations and steps are shown.
    :param password: asked for with the operator's name, by HTTP's Basic authentication; at least 12 characters.
    :param anonymous: True to serve it without a password to all who reach it.
    :param allowed_hosts: the host names under which it is reached, beside addresses and ``localhost``; ``*`` for any.
    :raises ConfigurationError: if there is neither a password nor ``anonymous``, if the password is too short, or a
        setting of ``kafka`` is malformed; and for an asynchronous engine.
    """
    if password is None and not anonymous:
        raise ConfigurationError("console_app: give it a password, or anonymous=True if all who reach it may read it")
    if password is not None and anonymous:
        raise ConfigurationError("console_app: it has a password, so it cannot be anonymous")
    if not isinstance(engine, Engine) or engine.dialect.is_async:
        raise ConfigurationError("console_app: give it a blocking engine, made by sqlalchemy.create_engine")
    ClientSettings.from_config(kafka)
    chosen = replace(settings or ConsoleSettings(), actions=actions or (settings is not None and settings.actions))
    console = Console(Place(engine, dict(kafka), application, two_phase), chosen, dual_writes)
    console.protected(password, allowed_hosts)
    return console
