"""Programs in Java over Kafka's own client."""

from pathlib import Path

_JAVA = Path(__file__).parents[2] / "peer_clients" / "java"
LOGIN, USERS = (_JAVA / f"{name}.java" for name in ("Login", "Users"))
