"""A program that gevent or eventlet has patched: many units of work in green threads of one process.

``python -m tests.support.production.green_program gevent URL BROKER TOPIC APPLICATION UNITS PRODUCER MEETING``. The
first ``MEETING`` units wait for each other inside their blocks: the program fails unless they are open at the same
time.
"""

import sys

if sys.argv[1] == "gevent":
    from gevent import monkey

    monkey.patch_all()
else:
    import eventlet

    eventlet.monkey_patch()

import threading

from sqlalchemy import create_engine, insert

from dualwrite import DualWrite
from tests.support.coordinator.event_table import events

MEETING_SECONDS = 60.0


def main(url: str, broker: str, topic: str, application: str, units: int, producer: str, meeting: int) -> None:
    """Write ``units`` units, each in a green thread; the slots are fewer."""
    engine = create_engine(url, pool_size=40)
    config = {"bootstrap.servers": broker}
    met = threading.Barrier(meeting)
    failures: list[Exception] = []

    def write(dual_write: DualWrite, number: int) -> None:
        try:
            with dual_write.transaction() as tx:
                with dual_write.transaction() as inner:
                    assert inner is tx, "it is found by its green thread"
                if number < meeting:
                    met.wait(MEETING_SECONDS)
                tx.execute(insert(events).values(value=str(number)))
                tx.produce(topic, value=str(number))
                if number % 10 == 9:
                    raise KeyError(number)
        except KeyError:
            pass
        except Exception as error:  # noqa: BLE001 - raised by the main thread
            failures.append(error)

    options = {"lease_timeout": 3.0, "pool_size": 20, "acquire_timeout": 60.0, "producer": producer}
    with DualWrite(engine, config, application=application, **options) as dual_write:  # type: ignore[arg-type]
        threads = [threading.Thread(target=write, args=(dual_write, number)) for number in range(units)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        dual_write.recover()
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[2:6], int(sys.argv[6]), sys.argv[7], int(sys.argv[8]))
