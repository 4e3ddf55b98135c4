"""Container files and the compose file: linted, and consistent with the tree they are made from.

No container engine is at hand, so nothing is built or started here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from cli.config import settings_class
from kvstore.upkeep import UpkeepSettings
from runtime.settings import load_process
from tests.fakes.processes import ROOT

pytestmark = pytest.mark.medium

FILES = ("Containerfile", "Containerfile.gpu")
PROGRAMS = {
    "balancer": settings_class("balancer"),
    "prefill_service": settings_class("prefill"),
    "decode_service": settings_class("decode"),
    "kvstore": UpkeepSettings,
}


def instructions(name: str) -> list[tuple[str, str]]:
    """Keyword and rest of each instruction, without comments, lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("name", FILES)
def test_the_linter_has_nothing_to_say(name: str) -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, ROOT / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", FILES)
def test_images_run_as_nobody_and_stop_by_a_signal(name: str) -> None:
    found = instructions(name)
    assert [rest for key, rest in found if key == "USER"][-1] == "10001:10001"
    assert ("STOPSIGNAL", "SIGTERM") in found
    assert "HEALTHCHECK" not in {key for key, _ in found}  # the platform's business
    labels = " ".join(rest for key, rest in found if key == "LABEL")
    assert "org.opencontainers.image.version" in labels


def test_the_role_is_the_argument() -> None:
    found = dict(instructions("Containerfile"))
    assert found["ENTRYPOINT"] == '["python", "-m"]'
    labels = found["LABEL"]
    for name in ("source", "revision", "version", "licenses", "created"):
        assert f"org.opencontainers.image.{name}" in labels


def test_the_wheel_gets_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    copied = {rest.split()[0] for key, rest in instructions("Containerfile") if key == "COPY"}
    assert packages <= copied
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for source in copied:
        if source.startswith("-"):  # from another stage
            continue
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in kept, f"{source} is left out by .dockerignore"


def test_extras_that_are_installed_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = set(project["project"]["optional-dependencies"])
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    named = {
        name for match in re.findall(r"disagg\[([a-z,]+)\]", text) for name in match.split(",")
    }
    assert named and named <= extras


def test_the_compose_file_fits_the_specification(compose: dict[str, Any]) -> None:
    # Merge keys are YAML's; what they expand to is what is specified.
    PyCompose.from_yaml(yaml.safe_dump(compose)).validate()


def test_services_of_the_compose_file_find_each_other(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"balancer", "prefill", "decode", "janitor", "valkey"} <= set(services)
    assert {"prometheus", "tempo", "grafana"} <= set(services)
    for name, service in services.items():
        assert set(service.get("depends_on", [])) <= set(services), name
        assert service["networks"] == ["disagg"], name
        for mount in service.get("volumes", []):
            assert (ROOT / mount.split(":")[0]).exists(), mount
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} would be open to the network"
    for name in ("prefill", "decode"):
        command = services[name]["command"]
        # What is announced is what the balancer connects to.
        assert command[command.index("--host") + 1] == services[name]["hostname"] == name
        assert command[command.index("--balancer") + 1] == "balancer:50051"


def test_our_processes_are_restricted(compose: dict[str, Any]) -> None:
    for name in ("balancer", "prefill", "decode", "janitor"):
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["user"] == "10001:10001"


def test_flags_in_the_compose_file_are_known(compose: dict[str, Any]) -> None:
    seen = set()
    for service in compose["services"].values():
        program, *flags = service.get("command", [""])
        if program in PROGRAMS:
            with pytest.raises(SystemExit) as ended:
                load_process(
                    PROGRAMS[program],  # type: ignore[type-var]
                    [*flags, "--check-config"],
                    prog=program,
                    environment={
                        key: value
                        for key, value in service["environment"].items()
                        if key.startswith("DISAGG_")
                    },
                )
            assert ended.value.code == 0, program
            seen.add(program)
    assert seen == set(PROGRAMS)


def test_targets_of_prometheus_and_grafana_are_services(compose: dict[str, Any]) -> None:
    services = set(compose["services"])
    scraped = yaml.safe_load((ROOT / "docker" / "prometheus.yaml").read_text(encoding="utf-8"))
    targets = {
        target
        for job in scraped["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    provisioning = ROOT / "docker" / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "disagg.yaml").read_text())
    urls = {source["url"].removeprefix("http://") for source in sources["datasources"]}
    assert {address.split(":")[0] for address in targets | urls} <= services
    board = yaml.safe_load((provisioning / "dashboards" / "disagg.yaml").read_text())
    path = board["providers"][0]["options"]["path"]
    mounts = [mount.split(":")[1] for mount in compose["services"]["grafana"]["volumes"]]
    assert path in mounts
    rules = scraped["rule_files"][0]
    assert str(Path(rules).parent) in [
        mount.split(":")[1] for mount in compose["services"]["prometheus"]["volumes"]
    ]


def test_prometheus_scrapes_every_process_of_ours(compose: dict[str, Any]) -> None:
    text = (ROOT / "docker" / "prometheus.yaml").read_text(encoding="utf-8")
    scraped = {
        target
        for job in yaml.safe_load(text)["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    served = set()
    for name, service in compose["services"].items():
        command = service.get("command", [])
        if "--metrics-port" in command:
            first = int(command[command.index("--metrics-port") + 1])
            ranks = int(command[command.index("--ranks") + 1]) if "--ranks" in command else 1
            served |= {f"{name}:{first + rank}" for rank in range(ranks)}
    assert scraped == served
    assert {target.partition(":")[0] for target in served} == {
        *("balancer", "prefill", "decode", "janitor")
    }
