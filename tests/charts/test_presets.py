"""What must hold for every preset: valid, restricted, consistent, and readable by the services."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from charts.golden import CHART, golden_of, presets, render
from cli.config import settings_class
from kvstore.config import parse_url
from kvstore.upkeep import UpkeepSettings
from runtime.settings import load
from serving.rank import run_layout
from tests.charts.conftest import Objects
from tests.charts.objects import component, config, container, of_kind, pods, roles
from tests.charts.schemas import VERSIONS, problem

pytestmark = pytest.mark.medium


def test_helm_finds_nothing_to_complain_about(helm: Path) -> None:
    for preset in presets():
        words = ("lint", "--strict", str(CHART), "--values", str(preset))
        done = subprocess.run([str(helm), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "0 chart(s) failed" in done.stdout, done.stdout
        assert done.stderr == ""  # such as what would be refused if a linter had a cluster


@pytest.mark.parametrize("path", presets(), ids=lambda path: path.stem)
def test_a_render_is_the_one_that_was_looked_at(helm: Path, path: Path) -> None:
    golden = golden_of(path).read_text(encoding="utf-8")
    fresh = render(helm, "--values", str(path))
    assert fresh == golden, "look at the difference, then write it: make chart"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_its_schema(preset: Objects, version: str) -> None:
    problems = {
        f"{item['kind']}/{item['metadata']['name']}": text
        for item in preset
        if (text := problem(item, version)) is not None
    }
    assert problems == {}


def test_names_are_unique_and_short(preset: Objects) -> None:
    names = [(item["apiVersion"], item["kind"], item["metadata"]["name"]) for item in preset]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for _, _, name in names)


def test_pods_are_restricted(preset: Objects) -> None:
    """The restricted level of Pod Security; RDMA is the one exception, and is asked for."""
    for where, pod in pods(preset):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, where
        assert spec["securityContext"]["runAsNonRoot"] is True, where
        assert spec["securityContext"]["runAsUser"] == 10001, where
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert not {"hostPID", "hostIPC", "hostNetwork"} & set(spec), where
        context = container(pod)["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, where
        assert context["readOnlyRootFilesystem"] is True, where
        assert context["capabilities"]["drop"] == ["ALL"], where
        has_rdma = "rdma/ib" in container(pod).get("resources", {}).get("limits", {})
        assert context["capabilities"].get("add", []) == (["IPC_LOCK"] if has_rdma else []), where
        assert {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]} <= {
            *("configMap", "emptyDir", "secret", "persistentVolumeClaim")
        }, where


def test_variables_of_other_services_do_not_become_settings(preset: Objects) -> None:
    # A release called disagg would give every pod a DISAGG_BALANCER_SERVICE_HOST, and the processes
    # refuse variables with their prefix that they do not know.
    assert all(pod["spec"]["enableServiceLinks"] is False for _, pod in pods(preset))


def test_probes_ask_a_port_that_the_container_has(preset: Objects) -> None:
    for where, pod in roles(preset).items():
        ports = {port["containerPort"]: port["name"] for port in container(pod)["ports"]}
        assert len(set(ports.values())) == len(container(pod)["ports"]), where
        assert all(len(name) <= 15 for name in ports.values()), where
        for kind in ("startup", "liveness", "readiness"):
            probe = container(pod)[f"{kind}Probe"]
            assert probe["grpc"]["service"] == kind, where
            assert ports[probe["grpc"]["port"]] == "grpc", where


def test_services_lead_to_ports_and_pods_that_exist(preset: Objects) -> None:
    templates = [pod for _, pod in pods(preset)]
    for name, service in of_kind(preset, "Service").items():
        selector = service["spec"]["selector"].items()
        chosen = [pod for pod in templates if selector <= pod["metadata"]["labels"].items()]
        assert len(chosen) == 1, name
        names = {port["name"] for port in container(chosen[0])["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names, name


def test_selectors_never_hold_a_version(preset: Objects) -> None:
    for item in preset:
        selector = item.get("spec", {}).get("selector")
        if selector:
            labels = selector.get("matchLabels", selector)
            assert not {"app.kubernetes.io/version", "helm.sh/chart"} & set(labels), item


def test_each_pod_is_counted_by_one_workload_only(preset: Objects) -> None:
    templates = dict(pods(preset))
    for kind in ("Deployment", "StatefulSet"):
        for name, item in of_kind(preset, kind).items():
            selector = item["spec"]["selector"]["matchLabels"].items()
            chosen = {
                where
                for where, pod in templates.items()
                if selector <= pod["metadata"]["labels"].items()
            }
            assert chosen == {f"{kind}/{name}"}


def test_pods_live_long_enough_to_drain(preset: Objects) -> None:
    for where, pod in roles(preset).items():
        settings = config(preset, where.split("/")[1])["drain"]
        pause = container(pod)["lifecycle"]["preStop"]["sleep"]["seconds"]
        needed = pause + settings["propagation_s"] + settings["max_s"] + 15
        assert pod["spec"]["terminationGracePeriodSeconds"] >= needed, where


def test_the_services_read_their_settings(preset: Objects, tmp_path: Path) -> None:
    """Each rendered file through the real loader, with the variables of its pod."""
    read = 0
    for where, pod in pods(preset):
        role, name = component(pod), where.split("/")[1]
        classes = {"janitor": UpkeepSettings}
        if role in ("balancer", "prefill", "decode"):
            classes[role] = settings_class(role)  # type: ignore[assignment]
        if role not in classes:
            continue
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config(preset, name)), encoding="utf-8")
        variables = {
            entry["name"]: entry.get("value", "10.1.2.3")
            for entry in container(pod)["env"]
            if entry["name"].startswith("DISAGG_")
        }
        loaded = load(classes[role], file=path, environment=variables)  # type: ignore[type-var]
        url = loaded.value.server.url if role == "janitor" else loaded.value.store.url
        assert parse_url(url).host, where
        if role in ("prefill", "decode"):
            assert loaded.value.listen.host == "10.1.2.3"
            assert loaded.origins["group.name"] == "environment DISAGG_GROUP__NAME"
            assert run_layout(loaded.value).layout.world_size >= 1
        read += 1
    assert read == 4


def test_arguments_name_a_program_and_the_file(preset: Objects) -> None:
    programs = {"balancer", "prefill_service", "decode_service", "kvstore"}
    seen = set()
    for where, pod in pods(preset):
        only = container(pod)
        if component(pod) not in ("balancer", "prefill", "decode", "janitor"):
            continue
        program, flag, path = only["args"]
        seen.add(program)
        assert flag == "--config"
        mounts = {mount["mountPath"]: mount["name"] for mount in only["volumeMounts"]}
        volume = next(
            item
            for item in pod["spec"]["volumes"]
            if item["name"] == mounts[str(Path(path).parent)]
        )
        assert Path(path).name in of_kind(preset, "ConfigMap")[volume["configMap"]["name"]]["data"]
        assert where.endswith(volume["configMap"]["name"])
    assert seen == programs


def test_volumes_and_mounts_fit_each_other(preset: Objects) -> None:
    for where, pod in pods(preset):
        mounted = [mount["name"] for mount in container(pod)["volumeMounts"]]
        assert sorted(mounted) == sorted(volume["name"] for volume in pod["spec"]["volumes"]), where


def test_files_that_the_store_url_names_are_mounted(preset: Objects) -> None:
    for where, pod in pods(preset):
        if component(pod) not in ("balancer", "prefill", "decode", "janitor"):
            continue
        settings = config(preset, where.split("/")[1])
        url = settings.get("store", settings.get("server"))["url"]
        mounts = {item["mountPath"]: item["name"] for item in container(pod)["volumeMounts"]}
        for _, file in parse_url(url).files:
            name = mounts[str(Path(file).parent)]
            volume = next(item for item in pod["spec"]["volumes"] if item["name"] == name)
            assert Path(file).name in {item["path"] for item in volume["secret"]["items"]}, where


def test_a_changed_setting_replaces_the_pods(preset: Objects) -> None:
    sums = {
        where: pod["metadata"]["annotations"]["checksum/config"]
        for where, pod in roles(preset).items()
    }
    assert len(set(sums.values())) == len(sums)


def test_pods_fit_where_quotas_are_kept(preset: Objects) -> None:
    """CPU is requested and not limited: a limit slows a process down that nobody else waits for."""
    for where, pod in pods(preset):
        resources = container(pod)["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"]), where
        assert "memory" in resources["limits"] and "cpu" not in resources["limits"], where


def test_a_policy_covers_every_pod(preset: Objects) -> None:
    policies = of_kind(preset, "NetworkPolicy").values()
    for where, pod in pods(preset):
        labels = pod["metadata"]["labels"].items()
        chosen = [
            item
            for item in policies
            if item["spec"]["podSelector"]["matchLabels"].items() <= labels
        ]
        assert len(chosen) == 1, where


def test_the_cpu_preset_mentions_no_gpu(helm: Path) -> None:
    text = render(helm, "--values", str(CHART / "ci" / "cpu-demo-values.yaml"))
    assert "nvidia" not in text and "rdma" not in text


def test_presets_that_never_ran_say_so() -> None:
    for path in presets():
        head = path.read_text(encoding="utf-8").split("\nimage:")[0]
        if "gpu: {count" in path.read_text(encoding="utf-8"):
            assert "compute on the CPU" in " ".join(head.replace("#", "").split()), path.name
