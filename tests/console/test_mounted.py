"""The console inside of an application's own ASGI app, with that process's units of work."""

import asyncio
import re

import pytest
from confluent_kafka import Consumer
from sqlalchemy import create_engine, insert
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.routing import Mount

from dualwrite.console.app import Console, console_app
from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import ConfigurationError
from tests.support.console.asgi import SECONDS, LiveReader, answered, basic, requested, scope_of
from tests.support.coordinator.aio.async_dual_writes import async_url
from tests.support.coordinator.consumed_topics import reading
from tests.support.coordinator.event_table import events
from tests.support.operations.places import OperationsSite

PASSWORD = "correct horse battery"


@pytest.fixture
def console(site: OperationsSite) -> Console:
    dual_write = site.dual_write()
    console = console_app(
        site.engine,
        site.broker.client_config,
        application=site.application,
        password=PASSWORD,
        allowed_hosts=["shop.example"],
        dual_writes=[dual_write],
    )
    with dual_write.transaction() as tx:
        tx.produce(site.topic, value="one")
    with pytest.raises(ZeroDivisionError):
        fail(dual_write, site.topic)
    return console


def fail(dual_write: DualWrite, topic: str) -> None:
    with dual_write.transaction() as tx:
        tx.produce(topic, value="two")
        raise ZeroDivisionError


def test_the_units_of_this_process_are_shown_with_their_steps(site: OperationsSite, console: Console) -> None:
    app = Starlette(routes=[Mount("/console", console)])
    headers = {"host": "shop.example", "authorization": basic("Ann", PASSWORD)}
    answer = requested(app, "/console/", headers=headers)
    assert answer.status == 200
    page = answer.body
    assert f"the newest: {site.slot()}, rolled back after " in page
    assert "the slowest of the last 2: " in page
    steps = ["wait for a slot", "begin in the database", "begin in Kafka", "prepare: every record is acknowledged"]
    steps += ["store the prepared state in the row", "commit in the database: the decision", "complete in Kafka"]
    places = [page.rfind(f"<td>{step}</td>") for step in steps]
    assert -1 not in places
    assert places == sorted(places)
    assert len(re.findall(r"<svg viewBox=\"0 0 600 120\"", page)) == 3
    assert "recoveries 1</span>" in page
    assert not re.search(r"\sstyle=|<style|\son\w+=", page)
    site.engine.dispose()


def test_a_mounted_console_keeps_its_checks(console: Console) -> None:
    app = Starlette(routes=[Mount("/console", console)])
    login = {"authorization": basic("Ann", PASSWORD)}
    assert requested(app, "/console/", headers={"host": "shop.example"}).status == 401
    assert requested(app, "/console/", headers={"host": "evil.example", **login}).status == 421
    style = requested(app, "/console/static/console.css", headers={"host": "shop.example", **login})
    assert (style.status, style.headers["x-content-type-options"]) == (200, "nosniff")


def test_a_web_socket_is_closed_at_once() -> None:
    """The checks are of requests, and no page needs a web socket."""
    console = console_app(create_engine("sqlite://"), {"bootstrap.servers": "localhost:1"}, password=PASSWORD)
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        sent.append(message)

    for path in ("/events", "/static/console.css"):
        asyncio.run(console({"type": "websocket", "path": path, "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1000}] * 2


def test_without_a_password_it_must_be_said_that_it_is_open_to_all(site: OperationsSite) -> None:
    kafka = site.broker.client_config
    with pytest.raises(ConfigurationError, match="give it a password, or anonymous=True"):
        console_app(site.engine, kafka)
    with pytest.raises(ConfigurationError, match="cannot be anonymous"):
        console_app(site.engine, kafka, password=PASSWORD, anonymous=True)
    assert requested(console_app(site.engine, kafka, anonymous=True), "/static/console.css").status == 200


def test_wrong_arguments_are_refused_at_once(site: OperationsSite) -> None:
    with pytest.raises(ConfigurationError, match="blocking engine"):
        console_app(create_async_engine("sqlite+aiosqlite://"), {}, anonymous=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        console_app(create_engine("sqlite://"), {}, anonymous=True)
    with pytest.raises(ConfigurationError, match="too short"):
        console_app(site.engine, site.broker.client_config, password="short")


def test_without_dual_writes_there_are_no_plots(site: OperationsSite) -> None:
    console = console_app(site.engine, site.broker.client_config, application=site.application, anonymous=True)
    page = requested(console).body
    assert "0 in doubt" in page or "looking" in page
    assert "<svg" not in page
    site.engine.dispose()


def test_units_of_an_async_dual_write_are_shown_live_in_its_own_event_loop(site: OperationsSite) -> None:
    async def run() -> None:
        engine = create_async_engine(async_url(site.url, "aiosqlite"))
        async with AsyncDualWrite(engine, site.broker.client_config, application=site.application) as dual_write:
            console = console_app(
                site.engine,
                site.broker.client_config,
                application=site.application,
                anonymous=True,
                dual_writes=[dual_write],
            )
            app = Starlette(routes=[Mount("/console", console)])
            live = LiveReader(app, "/console/events")
            await live.shows("None has ended yet.")
            for value in ("one", "two"):
                async with dual_write.transaction() as tx:
                    await tx.execute(insert(events).values(value=value))
                    await tx.produce(site.topic, value=value)
            await live.shows(f"the newest: {site.slot()}, committed after ")
            page = (await answered(app, scope_of("/console/"))).body
            assert "the slowest of the last 2: " in page or page.count("<h3>") == 1
            assert "<td>complete in Kafka</td>" in page
            await live.leave()
        await engine.dispose()

    asyncio.run(run())
    assert site.visible() == site.stored() == ["one", "two"]


def read_one(consumer: Consumer) -> None:
    """Poll the next record."""
    (message,) = consumer.consume(1, timeout=SECONDS)
    assert message.error() is None


@pytest.mark.parametrize("in_database", [False, True], ids=["send_offsets", "store_offsets"])
def test_a_timeline_says_which_offsets_of_which_group_the_unit_commits(site: OperationsSite, in_database: bool) -> None:
    source, group = site.broker.create_topic(), f"readers-of-{site.application}"
    for value in ("a", "b"):
        with site.dual_write().transaction() as tx:
            tx.produce(source, value=value)
    dual_write = site.dual_write()
    console = console_app(site.engine, site.broker.client_config, anonymous=True, dual_writes=[dual_write])
    seek = dual_write.seek_to_stored if in_database else dual_write.seek_to_committed
    with reading(site.broker.bootstrap_servers, group) as consumer:
        consumer.subscribe([source], on_assign=seek)
        read_one(consumer)
        with dual_write.transaction() as tx:
            if in_database:
                tx.store_offsets(consumer)
            else:
                tx.send_offsets(consumer)
    place = "in the database" if in_database else "in the Kafka transaction"
    assert f"offsets of group {group}, {place}: {source}-0 at 1</p>" in requested(console).body
    site.engine.dispose()
