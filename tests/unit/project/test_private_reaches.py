"""No test uses a private name of another module; each way to do so is reported."""

from pathlib import Path

import pytest

from tests.support.private_reaches import private_reaches

TESTS = Path(__file__).parents[2]
SUPPORT = TESTS / "support"


def test_no_test_uses_a_private_name_of_another_module() -> None:
    exempt = (SUPPORT, Path(__file__))  # the examples below are such uses
    modules = [path for path in TESTS.rglob("*.py") if not any(path.is_relative_to(place) for place in exempt)]
    assert len(modules) > 300
    found = {str(path.relative_to(TESTS)): private_reaches(path.read_text()) for path in modules}
    assert {name: reaches for name, reaches in found.items() if reaches} == {}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("pool._queue.append(1)", "_queue"),
        ("pool.slots()[0]._lease", "_lease"),
        ("class Test:\n    def check(self) -> None:\n        self.pool._queue", "_queue"),
        ("def broken(self: Pool) -> None:\n    self._queue", "_queue"),
        ("manager_of(dual_write)._observers = ()", "_observers"),
        ("from dualwrite.client.threads import start_thread, _run as run", "_run"),
        ("from cryptography.x509.name import _ASN1Type", "_ASN1Type"),
        ('monkeypatch.setattr(pool, "_queue", [])', "_queue"),
        ('monkeypatch.setattr("dualwrite.client.threads._run", None)', "_run"),
        ('patch.object(pool, "_queue")', "_queue"),
        ('getattr(pool, "_queue")', "_queue"),
        ('vars(pool)["_queue"]', "_queue"),
        ('pool.__dict__["_queue"]', "_queue"),
        ('BROKEN = [("_queue", nothing)]', "_queue"),
        ('BROKEN = [(Pool, "_queue", nothing)]', "_queue"),
        ("drivers._ACTIONS", "_ACTIONS"),
    ],
)
def test_a_private_name_of_another_module_is_reported(source: str, name: str) -> None:
    assert [reach.partition(": ")[2] for reach in private_reaches(source)] == [name]


@pytest.mark.parametrize(
    "source",
    [
        "class Test:\n    def check(self) -> None:\n        self._pool.close()",
        "class Test(Base):\n    def check(self) -> None:\n        super()._check()",
        "fact._replace(epoch=1)",
        "row._mapping",
        "os._exit(1)",
        "KafkaError._TIMED_OUT",
        "confluent_kafka.KafkaError._PARTITION_EOF",
        "type(pool).__name__",
        'getattr(pool, "__name__")',
        'name.endswith("_total")',
        '@pytest.mark.usefixtures("_trusted")\ndef test() -> None: ...',
    ],
)
def test_own_and_documented_names_are_not_reported(source: str) -> None:
    assert private_reaches(source) == []
