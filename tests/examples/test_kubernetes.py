"""The manifest for Kubernetes: it agrees with the broker, with its image, and with itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualwrite.broker.config import BrokerOptions, read_config_file
from dualwrite.broker.metrics.health import PATIENCE_SECONDS
from dualwrite.cli.main import parser_for
from dualwrite.version import __version__
from tests.support.examples.packaging import PACKAGING, PROGRAM, container, container_command, options_of

Manifest = Mapping[str, Any]
OPTIONS = options_of(container_command())


@pytest.fixture(scope="module")
def objects() -> dict[str, Manifest]:
    """The objects of the manifest by kind; there is one of each."""
    read = list(yaml.safe_load_all((PACKAGING / "kubernetes.yaml").read_text()))
    kinds = {each["kind"]: each for each in read}
    assert len(kinds) == len(read)
    return kinds


@pytest.fixture(scope="module")
def pod(objects: dict[str, Manifest]) -> Manifest:
    template: Manifest = objects["StatefulSet"]["spec"]["template"]["spec"]
    return template


@pytest.fixture(scope="module")
def broker(pod: Manifest) -> Manifest:
    (only,) = pod["containers"]
    return dict(only)


@pytest.fixture
def settings(objects: dict[str, Manifest], tmp_path: Path) -> BrokerOptions:
    """The settings of the ConfigMap, as the broker reads them."""
    (name, text), *more = objects["ConfigMap"]["data"].items()
    assert not more
    assert name == Path(OPTIONS["--config-file"]).name
    (tmp_path / name).write_text(text)
    return BrokerOptions(tmp_path / "data", config=read_config_file(tmp_path / name))


def ports(broker: Manifest) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in broker["ports"]}


def mounts(of: Manifest) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in of["volumeMounts"]}


def test_there_is_one_broker_whose_names_agree(objects: dict[str, Manifest]) -> None:
    spec, service = objects["StatefulSet"]["spec"], objects["Service"]
    assert spec["replicas"] == 1
    assert spec["serviceName"] == service["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == service["spec"]["selector"] == labels


def test_the_containers_run_the_images_own_command(pod: Manifest, broker: Manifest, settings: BrokerOptions) -> None:
    (admin,) = pod["initContainers"]
    assert admin["image"] == broker["image"]
    assert broker["image"].endswith(f":{__version__}"), "without a tag each start would pull the image"
    assert not {"command", "args"} & broker.keys()
    assert admin["command"] == [PROGRAM]
    parser, _ = parser_for(admin["args"])
    parsed = parser.parse_args(admin["args"])
    assert f"User:{parsed.user}" == settings.config["super.users"]
    assert str(parsed.data_dir) == OPTIONS["--data-dir"]


def test_the_mounts_are_the_directories_of_the_images_command(pod: Manifest, broker: Manifest) -> None:
    expected = {OPTIONS["--data-dir"]: "data", str(Path(OPTIONS["--config-file"]).parent): "conf"}
    assert all(mounts(each) == expected for each in (broker, *pod["initContainers"]))


def test_the_ports_are_those_of_the_image_and_of_the_settings(
    objects: dict[str, Manifest], broker: Manifest, settings: BrokerOptions
) -> None:
    assert sorted(map(str, ports(broker).values())) == container("EXPOSE").split()
    (listener,) = settings.listeners
    (service,) = objects["Service"]["spec"]["ports"]
    assert ports(broker)[service["targetPort"]] == listener.port
    assert (listener.advertised_host, listener.advertised_port) == (
        objects["Service"]["metadata"]["name"],
        service["port"],
    )
    assert str(ports(broker)["metrics"]) == OPTIONS["--metrics"].rpartition(":")[2]


def test_every_client_authenticates_over_tls(settings: BrokerOptions) -> None:
    assert all(settings.authenticates(listener) and listener.protocol.is_tls for listener in settings.listeners)
    assert settings.access.is_enabled


def test_the_probes_wait_for_longer_than_the_brokers_checks(broker: Manifest) -> None:
    paths = {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for kind, path in paths.items():
        assert broker[kind]["httpGet"] == {"path": path, "port": "metrics"}
        assert broker[kind]["timeoutSeconds"] > PATIENCE_SECONDS
    assert "startupProbe" not in broker


def test_the_pod_may_take_longer_to_end_than_the_broker(pod: Manifest) -> None:
    assert pod["terminationGracePeriodSeconds"] >= float(OPTIONS["--stop-timeout"]) + 10


def test_the_pod_is_a_plain_user_that_writes_to_its_volume_alone(pod: Manifest, broker: Manifest) -> None:
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert str(context["runAsUser"]) == container("USER")
    assert context["runAsGroup"] == context["fsGroup"] == context["runAsUser"]
    for each in (broker, *pod["initContainers"]):
        confined = each["securityContext"]
        assert confined["readOnlyRootFilesystem"]
        assert not confined["allowPrivilegeEscalation"]
        assert confined["capabilities"] == {"drop": ["ALL"]}
    (conf,) = pod["volumes"]
    assert conf["projected"]["defaultMode"] & 0o007 == 0, "the private key is not for everyone"
