"""The files below `deploy/` against the command line, as far as that goes without a daemon."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from sparing.cli.main import app
from sparing.serve.guard import OPEN_PATHS

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def load(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def entrypoint() -> list[str]:
    words: list[str] = json.loads(re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M)[0])
    return words


def parse(words: list[str]) -> dict[str, Any]:
    """The values of a command line of `sparing`, parsed and not run."""
    program, verb, *rest = words
    assert (program, verb) == ("sparing", "serve")
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]  # a group
    values: dict[str, Any] = command.make_context("serve", rest).params
    return values


def test_the_image_serves_for_others_on_the_port_it_exposes() -> None:
    values = parse(entrypoint())
    assert values["host"] == "0.0.0.0"
    assert f"EXPOSE {values['port']}" in DOCKERFILE
    assert f"127.0.0.1:{values['port']}/health" in DOCKERFILE
    # No token is stored in the image.
    assert not re.search(r"^(ENV|ARG).*TOKEN", DOCKERFILE, re.M)
    for copied in re.findall(r"^COPY (.*) \./", DOCKERFILE, re.M)[0].split():
        assert (DEPLOY.parent / copied).exists()
        assert f"\n!{copied}\n" in (DEPLOY / "Dockerfile.dockerignore").read_text()


def test_the_compose_file_gives_options_that_exist_and_time_to_drain() -> None:
    ((service,),) = [[*each["services"].values()] for each in load("compose.yaml")]
    values = parse([*entrypoint(), *service["command"]])
    assert int(service["stop_grace_period"].removesuffix("s")) > values["drain_s"]
    (port,) = service["ports"]
    assert port == f"127.0.0.1:{values['port']}:{values['port']}"
    assert service["environment"]["SPARING_TOKEN"].startswith("${SPARING_TOKEN:?")
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_the_manifest_gives_options_that_exist_and_asks_paths_that_need_no_token() -> None:
    deployment, service = load("kubernetes.yaml")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    values = parse([*entrypoint(), *container["args"]])
    ((name, port),) = [(each["name"], each["containerPort"]) for each in container["ports"]]
    assert port == values["port"] == int(pod["metadata"]["annotations"]["prometheus.io/port"])
    assert [each["targetPort"] for each in service["spec"]["ports"]] == [name]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")}
    assert {kind: each["path"] for kind, each in probes.items()} == {
        "liveness": "/health",
        "readiness": "/ready",
    }
    assert all(each["port"] == name and each["path"] in OPEN_PATHS for each in probes.values())
    wait_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > values["drain_s"] + wait_s
    # Without a registry, only what the nodes have; `latest` would always be pulled.
    assert ":" in container["image"] or container["imagePullPolicy"] == "IfNotPresent"
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]


def test_the_command_for_a_cluster_exists() -> None:
    text = (DEPLOY / "ray-cluster.yaml").read_text()
    lines = text[text.index("sparing serve") :].split("\n# ")
    words = f"{lines[0].removesuffix(chr(92))} {lines[1].splitlines()[0]}".split()
    values = parse(words)
    assert (values["ray"], values["cluster"], values["most"]) == (True, "auto", 8)
    (cluster,) = load("ray-cluster.yaml")
    # The package is not on PyPI: every machine installs the clone that it is given.
    (folder,) = cluster["file_mounts"]
    assert cluster["file_mounts"][folder] == "."
    assert cluster["setup_commands"][0].startswith(f"cd {folder} && pip install ")
    assert cluster["max_workers"] == len(cluster["provider"]["worker_ips"])
