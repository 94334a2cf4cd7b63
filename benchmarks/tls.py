"""What TLS costs: the same client on a listener of PLAINTEXT and on one of SSL, in alternating rounds of one run.

    python -m benchmarks.tls [--rounds 5] [--seconds 5] [--megabytes 200] [--directory DIR]

Produces records of 1000 bytes with librdkafka, reads them, and runs transactions of one record with the native
producer. Needs the program ``openssl``, which makes the certificate. Read the ratios, not the numbers.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import Consumer, Producer

from benchmarks.rounds import made_directory
from dualwrite import EmbeddedBroker, TwoPhaseProducer

RECORD = b"x" * 1000
PATIENCE_SECONDS = 60.0

Settings = Mapping[str, str]
Workload = Callable[[Settings, argparse.Namespace], float]


def certificate(directory: Path) -> tuple[str, str]:
    """A self-signed certificate for localhost, and a file of it with its key."""
    key, chain, store = directory / "key.pem", directory / "certificate.pem", directory / "broker.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(chain)], check=True, capture_output=True)
    store.write_text(key.read_text() + chain.read_text())
    return str(chain), str(store)


def produce(settings: Settings, options: argparse.Namespace) -> float:
    """MB/s that librdkafka produces and the broker acknowledges."""
    producer = Producer({**settings, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    count = options.megabytes * 1_000_000 // len(RECORD)
    began = time.perf_counter()
    for _ in range(count):
        producer.produce("records", RECORD)
        producer.poll(0)
    if producer.flush(PATIENCE_SECONDS):
        raise TimeoutError("some records were not acknowledged")
    return options.megabytes / (time.perf_counter() - began)


def consume(settings: Settings, options: argparse.Namespace) -> float:
    """MB/s that librdkafka reads of what the rounds have produced so far, up to the same amount."""
    consumer = Consumer({**settings, "group.id": "none", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["records"])
    while not consumer.consume(1, 1.0):
        continue  # the group is being joined
    count, received, began = options.megabytes * 1_000_000 // len(RECORD) - 1, 0, time.perf_counter()
    while received < count:
        received += len(consumer.consume(10_000, 1.0))
    seconds = time.perf_counter() - began
    consumer.close()
    return received * len(RECORD) / 1_000_000 / seconds


def transact(settings: Settings, options: argparse.Namespace) -> float:
    """Transactions per second of one record each."""
    with TwoPhaseProducer({**settings, "transactional.id": "benchmark"}) as producer:
        producer.init_transactions()
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < options.seconds:
            producer.begin_transaction()
            producer.produce("transactions", RECORD)
            producer.commit_transaction()
            count += 1
        return count / (time.perf_counter() - began)


WORKLOADS: Mapping[str, tuple[str, Workload]] = {
    "produce": ("MB/s", produce),
    "consume": ("MB/s", consume),
    "transactions": ("/s", transact),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--directory", type=made_directory, help="where the broker's data is (a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        trusted, store = certificate(Path(scratch))
        config = {"listeners": "PLAINTEXT://localhost:0,SSL://localhost:0", "ssl.keystore.location": store}
        config["group.initial.rebalance.delay.ms"] = "0"
        with EmbeddedBroker(Path(scratch, "broker"), durability="os", config=config) as broker:
            plain = {"bootstrap.servers": broker.listeners["PLAINTEXT"]}
            tls = {"bootstrap.servers": broker.listeners["SSL"], "security.protocol": "SSL", "ssl.ca.location": trusted}
            for name, (unit, workload) in WORKLOADS.items():
                report(name, unit, *_measured(workload, plain, tls, options))


def _measured(
    workload: Workload, plain: Settings, tls: Settings, options: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """The figures of each round, of both listeners; one more round warms up."""
    rounds = []
    for number in range(options.rounds + 1):
        pair = [(0, plain), (1, tls)]
        rounds.append({which: workload(settings, options) for which, settings in pair[:: 1 - 2 * (number % 2)]})
    return [one[0] for one in rounds[1:]], [one[1] for one in rounds[1:]]


def report(name: str, unit: str, plain: list[float], tls: list[float]) -> None:
    """Print the medians and the median of the rounds' ratios."""
    ratios = [secured / open_ for open_, secured in zip(plain, tls, strict=True)]
    print(
        f"{name}: PLAINTEXT {statistics.median(plain):,.0f} {unit}, SSL {statistics.median(tls):,.0f} {unit},"
        f" ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
