"""What lies in `deploy/` would start: files fit their schemas, commands their command lines, versions each other.

Nothing is started here. `commands` gives every command of a file as a list of arguments, with the variables that the
file itself sets filled in, for whoever wants to run them.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
import string
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import ray
import typer.main
import yaml

import omniray
from omniray.coordinator.cli.app import app
from tests.source import LAYERS, REPOSITORY, relative
from tests.stores import Root

DEPLOY = REPOSITORY / "deploy"
DOCKERFILE, COMPOSE = DEPLOY / "Dockerfile", DEPLOY / "docker-compose.yml"
RAY_CLUSTER, KUBERAY = DEPLOY / "ray-cluster.yaml", DEPLOY / "kuberay.yaml"
FILES = (DOCKERFILE, COMPOSE, RAY_CLUSTER, KUBERAY)
SCHEMAS = [pytest.param(COMPOSE, "compose.json", id="compose"), pytest.param(KUBERAY, "kubernetes.json", id="kuberay")]

SHELL = ["sh", "-c"]
SEPARATORS = {"&&", "||", ";"}
RAY_COMMANDS = ("start", "stop", "health-check")


# What the files hold


def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file."""
    return list(yaml.safe_load_all(path.read_text()))


def commands(path: Path) -> list[list[str]]:
    """Every simple command that a file has run, in order; programs without their folders."""
    return [command for argv in _command_lines(path) for command in _simple_commands(argv)]


def _command_lines(path: Path) -> Iterator[list[str]]:
    """Every command line as it is written: an array of arguments, a shell's among them."""
    if path == DOCKERFILE:
        for array in re.findall(r"^\s*CMD (\[.*\])$", path.read_text(), flags=re.MULTILINE):
            yield json.loads(array)
    elif path == RAY_CLUSTER:
        (cluster,) = documents(path)
        for name in ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands"):
            yield from ([*SHELL, line] for line in cluster[name])
    elif path == COMPOSE:
        yield from _compose_command_lines(documents(path)[0])
    else:
        yield from _kubernetes_command_lines(documents(path))


def _compose_command_lines(compose: dict[str, Any]) -> Iterator[list[str]]:
    for service in compose["services"].values():
        if service["image"].startswith("omniray"):
            variables = service["environment"]
            yield _filled(service["command"], variables)
            if "test" in service["healthcheck"]:
                yield _filled(service["healthcheck"]["test"][1:], variables)


def _kubernetes_command_lines(manifests: list[dict[str, Any]]) -> Iterator[list[str]]:
    for container in _containers(manifests):
        variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        if "args" in container:
            yield _filled(container["args"], variables)
        yield from (
            _filled(container[probe]["exec"]["command"], variables)
            for probe in ("startupProbe", "readinessProbe", "livenessProbe")
            if probe in container
        )
    for manifest in manifests:
        yield from (["ray", "start", *_flags(parameters)] for parameters in _found(manifest, "rayStartParams"))


def _containers(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [container for manifest in manifests for found in _found(manifest, "containers") for container in found]


def _found(value: Any, key: str) -> Iterator[Any]:
    """What a document has under a key, wherever that is."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for inner in value.values():
            yield from _found(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _found(inner, key)


def _flags(parameters: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in parameters.items()]


def _filled(argv: list[str], variables: Mapping[str, str]) -> list[str]:
    """The arguments with the known variables in their places; `$$` is how Compose writes a `$`."""
    return [string.Template(part.replace("$$", "$")).safe_substitute(variables) for part in argv]


def _simple_commands(argv: list[str]) -> Iterator[list[str]]:
    """The commands of a command line, through one shell: those between `&&`, `||` and `;`, without `exec`."""
    words = shlex.split(argv[2].replace(";", " ; ")) if argv[:2] == SHELL else argv
    for separates, group in itertools.groupby(words, SEPARATORS.__contains__):
        program, *arguments = group
        if program == "exec":
            program, *arguments = arguments
        if not separates:
            yield [program.rpartition("/")[2], *arguments]


def called(program: str, *paths: Path) -> list[list[str]]:
    """The arguments of each call of a program."""
    return [command[1:] for path in paths for command in commands(path) if command[0] == program]


# Shape


def test_the_cluster_file_is_one_that_rays_launcher_takes() -> None:
    (cluster,) = documents(RAY_CLUSTER)
    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(cluster, json.loads(schema.read_text()))


@pytest.mark.parametrize(("path", "schema"), SCHEMAS)
def test_a_manifest_fits_its_schema(path: Path, schema: str) -> None:
    validator = _validator(schema)
    for document in documents(path):
        validator.validate(document)


@pytest.mark.parametrize(("path", "schema"), SCHEMAS)
def test_a_schema_refuses_a_field_that_it_does_not_know(path: Path, schema: str) -> None:
    """Every object of the manifest in turn gets a mistyped field; maps whose names are the author's are left out."""
    free = {"services", "environment", "depends_on", "volumes", "labels", "matchLabels", "rayStartParams"}
    validator = _validator(schema)
    for document in documents(path):
        for key, value in list(_objects(document)):
            if key in free or key.startswith("x-"):
                continue
            value["comand"] = ["true"]
            assert not validator.is_valid(document), key
            del value["comand"]


def _validator(schema: str) -> jsonschema.Draft202012Validator:
    text = json.loads((DEPLOY / "schemas" / schema).read_text())
    jsonschema.Draft202012Validator.check_schema(text)
    return jsonschema.Draft202012Validator(text)


def _objects(value: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a document with the key that leads to it; what is user-defined (`x-…`) is left out."""
    if isinstance(value, dict):
        yield key, value
        for name, inner in value.items():
            if not name.startswith("x-"):
                yield from _objects(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner, key)


# Commands


@pytest.mark.parametrize("path", [COMPOSE, RAY_CLUSTER, KUBERAY], ids=relative)
def test_each_way_of_deploying_starts_the_coordinator_on_a_ray_that_it_started_first(path: Path) -> None:
    ran = [command[:2] for command in commands(path)]
    assert ran.index(["ray", "start"]) < ran.index(["omniray", "up"])


@pytest.mark.parametrize("arguments", called("omniray", *FILES), ids=" ".join)
def test_every_omniray_command_is_one_that_the_command_line_takes(arguments: list[str]) -> None:
    verb, *rest = arguments
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    if verb != "--help":
        verbs[verb].make_context(verb, rest)


@pytest.mark.parametrize("arguments", called("ray", *FILES), ids=" ".join)
def test_every_ray_command_is_one_that_ray_takes(arguments: list[str]) -> None:
    from ray.scripts.scripts import cli

    command, *rest = arguments
    assert command in RAY_COMMANDS
    cli.commands[command].make_context(command, rest)


@pytest.mark.parametrize("path", [COMPOSE, KUBERAY], ids=relative)
def test_a_command_has_no_variable_that_its_file_does_not_set(path: Path) -> None:
    left = [word for command in commands(path) for word in command if "$" in word]
    assert left == []


def test_the_health_of_a_coordinator_is_what_status_says() -> None:
    assert called("omniray", DOCKERFILE)[-1] == ["status", "$OMNIRAY_URI", "--json"]
    assert called("omniray", KUBERAY)[1:] == [["status", "s3://graphs/social", "--json"]] * 3


# Agreement


def test_every_node_has_the_ray_that_the_tests_ran_on() -> None:
    (image,) = re.findall(r"^ARG RAY_VERSION=(.*)$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    (installed,) = re.findall(r"ray\[default\]==([0-9.]+)", RAY_CLUSTER.read_text())
    (declared,) = _found(documents(KUBERAY), "rayVersion")
    assert {image, installed, declared} == {ray.__version__}


def test_every_node_has_the_image_of_this_version() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    images = {image for path in (COMPOSE, KUBERAY) for image in _found(documents(path), "image")}
    assert {image for image in images if image.startswith("omniray")} == {f"omniray:{version}"}


def test_the_image_is_built_from_all_that_the_wheel_is_made_of_and_from_nothing_else() -> None:
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    sent = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), flags=re.MULTILINE)
    needed = {"pyproject.toml", "README.md", "LICENSE", "src", *LAYERS}
    assert {name for names in copied for name in names.split()} == set(sent) == needed


def test_the_container_that_waits_for_the_head_knows_the_token() -> None:
    """KubeRay hands it the variables of `env`, and none of `envFrom`."""
    for container in _containers(documents(KUBERAY)[:1]):
        assert [variable["name"] for variable in container["env"]] == ["RAY_AUTH_MODE", "RAY_AUTH_TOKEN"]


def test_nothing_runs_as_root() -> None:
    assert re.findall(r"^USER (.*)$", DOCKERFILE.read_text(), flags=re.MULTILINE) == ["1000"]
    contexts = [template["spec"]["securityContext"] for template in _found(documents(KUBERAY), "template")]
    assert contexts == [{"runAsNonRoot": True, "runAsUser": 1000}] * 3


def test_no_file_holds_a_secret_but_the_demos_own() -> None:
    text = "".join(path.read_text() for path in (DOCKERFILE, RAY_CLUSTER, KUBERAY, DEPLOY / "environment.example"))
    assert re.findall(r"^\s*(?:\w*TOKEN|\w*SECRET\w*KEY)[ ]*[=:][ ]*(\S+)$", text, flags=re.MULTILINE) == []


# The demo's writer


def test_the_demos_writer_writes_what_it_says_and_may_be_run_again(
    disk: Root, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An embedded graph has the same verbs as the coordinator's client, and stands in for it."""
    omniray.init(disk.uri, schema=(DEPLOY / "demo" / "social.pg").read_text()).close()
    monkeypatch.setenv("OMNIRAY_URI", disk.uri)
    monkeypatch.setattr(omniray, "connect", lambda uri, **_: omniray.open(uri), raising=False)
    writer = _demo_writer()
    writer.COMMITS = 2
    for _ in range(2):
        writer.main()
        assert capsys.readouterr().out.splitlines()[-1] == f"{disk.uri} has 200 people who know 198 others"


def _demo_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_writer", DEPLOY / "demo" / "writer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
