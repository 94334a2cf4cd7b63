"""The directory of a new node, as Kafka's StorageTool makes it, without a JVM for each node.

All that differs between nodes is ``meta.properties``. A controller has the levels of features besides, in a file that
StorageTool makes once for each set of levels.
"""

import base64
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.support.apache_kafka.jars import require_java, server_classpath
from tests.support.class_archives import QUICK

_FEATURES = Path("__cluster_metadata-0", "00000000000000000000-0000000000.checkpoint")
_SETTINGS = """process.roles=controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9
listeners=CONTROLLER://127.0.0.1:9
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT
log.dirs={}
"""


def new_cluster_id() -> str:
    """A new cluster id that never begins with "-": kafka-storage takes that for an option."""
    first, *others = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *others])).decode().rstrip("=")


def format_directory(
    data_dir: Path, cluster_id: str, settings: Mapping[str, str], features: Mapping[str, int] | None = None
) -> None:
    """Make ``data_dir`` for a node with ``settings``.

    :param features: levels of features that are other than this release's, as ``{"transaction.version": 1}``.
    """
    identity = {
        "version": "1",
        "cluster.id": cluster_id,
        "node.id": settings["node.id"],
        "directory.id": new_cluster_id(),  # an id of the same form
    }
    data_dir.mkdir()
    if "controller" in settings["process.roles"]:
        (data_dir / _FEATURES).parent.mkdir()
        (data_dir / _FEATURES).write_bytes(_features_file(tuple((features or {}).items())))
    (data_dir / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in identity.items()))


@cache
def _features_file(features: tuple[tuple[str, int], ...]) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path, made = Path(directory, "server.properties"), Path(directory, "data")
        path.write_text(_SETTINGS.format(made))
        form = ["kafka.tools.StorageTool", "format", "-t", new_cluster_id(), "-c", str(path)]
        for name, level in features:
            form += ["--feature", f"{name}={level}"]
        command = [require_java(), *QUICK, "-cp", server_classpath(), *form]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        return (made / _FEATURES).read_bytes()
