"""A stock service with Flask under gunicorn: each reservation is in the table and in the topic, or in neither.

    dualwrite db upgrade --db sqlite:///stock.db
    DATABASE_URL=sqlite:///stock.db python examples/flask_stock.py tea 10
    export DATABASE_URL=sqlite:///stock.db KAFKA=127.0.0.1:9092
    gunicorn --chdir examples --workers 4 --threads 4 'flask_stock:create_app()'

The second line makes the tables and puts tea into stock. The workers are processes of one application and share its
slots: each leases what its threads need. When one dies, gunicorn starts another.
"""

import atexit
import logging
import os
import sys
from uuid import uuid4

from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select, update

from dualwrite import DualWrite, DualWriteError

metadata = MetaData()
stock = Table(
    "stock",
    metadata,
    Column("article", String(40), primary_key=True),
    Column("left", Integer, nullable=False),
)
reservations = Table(
    "reservations",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("article", String(40), nullable=False),
)


def create_app() -> Flask:
    """The service, made in each worker; where it finds its database and Kafka is in the environment."""
    logging.basicConfig(level=logging.INFO)  # dualwrite's lines: recoveries, outages, outcomes that need a person
    engine = create_engine(os.environ["DATABASE_URL"])
    # A caller waits for the answer: in an outage of Kafka, say so after seconds and not after half a minute.
    kafka = {"bootstrap.servers": os.environ["KAFKA"], "message.timeout.ms": "2000"}
    dual_write = DualWrite(engine, kafka, application="stock", acquire_timeout=5)
    atexit.register(dual_write.close)
    app = Flask(__name__)

    @app.errorhandler(DualWriteError)
    def refuse(error: DualWriteError) -> ResponseReturnValue:
        return jsonify(error=str(error)), 503 if error.retriable else 500

    @app.post("/reservations")
    def reserve() -> ResponseReturnValue:
        article, reservation = request.get_json()["article"], uuid4().hex
        with dual_write.transaction() as tx:
            enough = (stock.c.article == article, stock.c.left > 0)
            if not tx.execute(update(stock).where(*enough).values(left=stock.c.left - 1)).rowcount:
                return jsonify(error=f"there is no {article} left"), 409
            tx.execute(insert(reservations).values(id=reservation, article=article))
            tx.produce("reservations", key=article, value=reservation)
        return jsonify(id=reservation), 201

    @app.get("/stock/<article>")
    def look_up(article: str) -> ResponseReturnValue:
        with engine.connect() as connection:  # reading needs no unit of work
            left = connection.scalar(select(stock.c.left).where(stock.c.article == article))
        return (jsonify(left=left), 200) if left is not None else (jsonify(error=f"no article {article}"), 404)

    return app


def deliver(article: str, count: int) -> None:
    """Make the tables, and put ``count`` of a new article into stock."""
    engine = create_engine(os.environ["DATABASE_URL"])
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(stock).values(article=article, left=count))
    engine.dispose()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} ARTICLE COUNT")
    deliver(sys.argv[1], int(sys.argv[2]))
