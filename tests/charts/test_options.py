"""What values do: kinds of workloads, names, placement, gateways, the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from charts.golden import render
from engine.parallel.layout.notation import parse_layout
from tests.charts.conftest import Rendered, parse
from tests.charts.objects import config, container, of_kind, one, pods, roles
from tests.charts.schemas import problem

pytestmark = pytest.mark.medium

PREVIEW = "decode.ranks=16,decode.groupSize=2,lws.multiHostPreview=true"


def balancers(objects: list[dict[str, Any]]) -> list[str]:
    found = config(objects, "demo-disagg-prefill")["announce"]["balancers"]
    assert isinstance(found, list)
    return found


def test_members_reach_a_balancer_that_is_not_ready(rendered: Rendered) -> None:
    """It becomes ready by their announcements, so its ready pods alone would never be any."""
    objects = rendered()
    [address] = balancers(objects)
    host, _, port = address.partition(":")
    service = one(objects, "Service", host.split(".")[0])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert int(port) in {item["port"] for item in service["spec"]["ports"]}
    assert host.split(".")[1:] == ["llm", "svc"]


def test_pods_listen_at_addresses_of_ipv6(rendered: Rendered) -> None:
    objects = rendered("--set", "listenAddress=::")
    balancer = config(objects, "demo-disagg-balancer")
    assert (balancer["listen"]["host"], balancer["http"]["host"]) == ("::", "::")
    for role in ("prefill", "decode"):
        assert config(objects, f"demo-disagg-{role}")["metrics"]["host"] == "::"


def test_one_balancer_is_replaced_not_doubled(rendered: Rendered) -> None:
    [deployment] = [
        item for name, item in of_kind(rendered(), "Deployment").items() if "balancer" in name
    ]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_members_announce_to_every_balancer_by_its_name(rendered: Rendered) -> None:
    objects = rendered("--set", "balancer.kind=StatefulSet,balancer.replicas=3")
    item = one(objects, "StatefulSet", "demo-disagg-balancer")
    assert item["spec"]["serviceName"] == "demo-disagg-balancer-headless"
    assert [address.split(".")[0] for address in balancers(objects)] == [
        f"demo-disagg-balancer-{number}" for number in range(3)
    ]
    assert one(objects, "PodDisruptionBudget", "demo-disagg-balancer")
    # Each knows that there are others, and draws other lots than they do.
    assert config(objects, "demo-disagg-balancer")["routing"] == {"replicas": 3}
    names = {entry["name"] for entry in container(item["spec"]["template"])["env"]}
    assert "DISAGG_ROUTING__SALT" in names
    assert problem(item) is None


def test_members_know_the_balancers_that_may_come(rendered: Rendered) -> None:
    values = "balancer.kind=StatefulSet,balancer.autoscaling.enabled=true"
    objects = rendered("--set", f"{values},balancer.autoscaling.maxReplicas=5")
    assert len(balancers(objects)) == 5
    scaler = one(objects, "HorizontalPodAutoscaler", "demo-disagg-balancer")
    assert scaler["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"
    assert "replicas" not in one(objects, "StatefulSet", "demo-disagg-balancer")["spec"]
    assert problem(scaler) is None


def test_each_rank_has_a_port(rendered: Rendered) -> None:
    objects = rendered("--set", "decode.ranks=4,events.enabled=true")
    pod = one(objects, "Deployment", "demo-disagg-decode")["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
    assert {ports[name] for name in ports if name.startswith("grpc")} == set(range(50051, 50055))
    assert {ports[f"events-{rank}"] for rank in range(4)} == set(range(5557, 5561))
    assert {ports[f"replay-{rank}"] for rank in range(4)} == set(range(5657, 5661))
    policy = one(objects, "NetworkPolicy", "demo-disagg-decode")
    assert {"protocol": "TCP", "port": 50051, "endPort": 50054} in policy["spec"]["ingress"][0][
        "ports"
    ]
    assert config(objects, "demo-disagg-decode")["events"] == {
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5657",
    }


def test_a_group_over_pods_is_a_leader_worker_set(rendered: Rendered) -> None:
    objects = rendered("--set", f"{PREVIEW},decode.gpu.count=8,decode.rdma.count=8")
    item = one(objects, "LeaderWorkerSet", "demo-disagg-decode")
    assert problem(item) is None
    assert item["spec"]["leaderWorkerTemplate"]["size"] == 2
    pod = item["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    limits = container(pod)["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["rdma/ib"]) == (8, 8)
    assert len(container(pod)["ports"]) == 8 + 8  # grpc and metrics of each rank
    name = next(entry for entry in container(pod)["env"] if entry["name"] == "DISAGG_GROUP__NAME")
    # Equal on all pods of a group, different between groups.
    assert name["value"] == "demo-disagg-decode-$(GROUP_INDEX)"
    assert "demo-disagg-decode" not in of_kind(objects, "Deployment")
    # The controller makes a service of the set's name for its pods; ours must not be in the way.
    assert "demo-disagg-decode" not in of_kind(objects, "Service")
    policy = one(objects, "NetworkPolicy", "demo-disagg-decode")["spec"]
    assert any("ports" not in rule for rule in policy["ingress"])


def test_a_group_of_one_pod_is_named_after_it(rendered: Rendered) -> None:
    pod = one(rendered(), "Deployment", "demo-disagg-prefill")["spec"]["template"]
    variables = {entry["name"]: entry for entry in container(pod)["env"]}
    field = variables["DISAGG_GROUP__NAME"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.name"
    address = variables["DISAGG_LISTEN__HOST"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert address == "status.podIP"


def test_tiers_are_workloads_with_their_own_differences(rendered: Rendered) -> None:
    values = (
        "prefill.settings.engine.maxNumSeqs=8,"
        "prefill.tiers[0].name=short,prefill.tiers[0].replicas=3,"
        "prefill.tiers[1].name=long,prefill.tiers[1].ranks=2,"
        "prefill.tiers[1].settings.engine.maxNumBatchedTokens=4096"
    )
    objects = rendered("--set", values)
    short = one(objects, "Deployment", "demo-disagg-prefill-short")
    assert short["spec"]["replicas"] == 3
    assert short["spec"]["selector"]["matchLabels"]["disagg/tier"] == "short"
    assert config(objects, "demo-disagg-prefill-short")["engine"] == {"max_num_seqs": 8}
    long = config(objects, "demo-disagg-prefill-long")
    assert long["engine"] == {"max_num_seqs": 8, "max_num_batched_tokens": 4096}
    assert long["group"] == {"ranks": 2}
    assert "demo-disagg-prefill" not in of_kind(objects, "Deployment")
    assert all(problem(item) is None for item in objects)


def test_a_role_may_say_no_where_the_defaults_say_yes(rendered: Rendered) -> None:
    """Empty, false and zero are values too."""
    values = (
        "defaults.hostNetwork=true,balancer.hostNetwork=false,"
        "defaults.priorityClassName=high,prefill.priorityClassName=,"
        "prefill.replicas=2,decode.replicas=2,prefill.pdb.enabled=false,"
        "prefill.drain.propagationSeconds=0"
    )
    objects = rendered("--set", values)
    found = {where.split("-")[-1]: pod["spec"] for where, pod in roles(objects).items()}
    assert ["hostNetwork" in found[role] for role in ("balancer", "prefill")] == [False, True]
    assert ["priorityClassName" in found[role] for role in ("decode", "prefill")] == [True, False]
    assert set(of_kind(objects, "PodDisruptionBudget")) == {"demo-disagg-decode"}
    assert config(objects, "demo-disagg-prefill")["drain"]["propagation_s"] == 0


def test_a_replica_alone_has_no_budget(rendered: Rendered) -> None:
    # It would keep its node from ever being drained.
    assert of_kind(rendered(), "PodDisruptionBudget") == {}


def test_autoscaling_owns_the_replicas(rendered: Rendered) -> None:
    objects = rendered(
        "--set", f"prefill.autoscaling.enabled=true,decode.autoscaling.enabled=true,{PREVIEW}"
    )
    assert "replicas" not in one(objects, "Deployment", "demo-disagg-prefill")["spec"]
    assert "replicas" not in one(objects, "LeaderWorkerSet", "demo-disagg-decode")["spec"]
    target = one(objects, "HorizontalPodAutoscaler", "demo-disagg-decode")["spec"]["scaleTargetRef"]
    assert target == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "demo-disagg-decode",
    }


def test_a_digest_goes_before_a_tag(rendered: Rendered) -> None:
    digest = "sha256:" + "0" * 64
    objects = rendered(
        "--set", f"image.registry=r.example,image.digest={digest},prefill.image.repository=gpu"
    )
    images = {
        where.split("-")[-1]: container(pod)["image"] for where, pod in roles(objects).items()
    }
    assert images["balancer"] == f"r.example/disagg@{digest}"
    assert images["prefill"] == f"r.example/gpu@{digest}"


def test_a_model_comes_from_a_volume(rendered: Rendered) -> None:
    objects = rendered(
        "--set", "model.volume.hostPath.path=/data,model.path=/models/v4,model.name=v4"
    )
    for where, pod in roles(objects).items():
        mount = next(item for item in container(pod)["volumeMounts"] if item["name"] == "model")
        assert mount == {"name": "model", "mountPath": "/models", "readOnly": True}
        assert config(objects, where.split("/")[1])["model"] == {"path": "/models/v4", "name": "v4"}


def test_a_password_is_a_file_and_nowhere_else(rendered: Rendered) -> None:
    objects = rendered(
        "--set",
        "valkey.enabled=false,externalRedis.url=redis://h:6390/2?db=2,externalRedis.existingSecret=kv,"
        "externalRedis.passwordKey=pw,externalRedis.integrity.existingSecret=sign",
    )
    url = config(objects, "demo-disagg-decode")["store"]["url"]
    assert url == (
        "redis://h:6390/2?db=2&password_file=/etc/disagg/store/password"
        "&integrity_key_file=/etc/disagg/store-integrity/key"
    )
    assert "demo-disagg-valkey" not in of_kind(objects, "Deployment")
    for where, pod in pods(objects):
        secrets = [item["secret"] for item in pod["spec"]["volumes"] if "secret" in item]
        names = {item["secretName"] for item in secrets}
        assert names == (set() if where.startswith("Pod/") else {"kv", "sign"}), where
        assert "secretKeyRef" not in json.dumps(pod)
    egress = one(objects, "NetworkPolicy", "demo-disagg-decode")["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": 6390}]} in egress


def test_certificates_and_keys_are_files_and_probes_need_neither(rendered: Rendered) -> None:
    objects = rendered("--set", "tls.mode=mtls,tls.existingSecret=cert,auth.existingSecret=keys")
    for name, secrets in (("balancer", {"cert", "keys"}), ("prefill", {"cert"})):
        found = config(objects, f"demo-disagg-{name}")
        assert found["tls"]["mode"] == "mtls"
        assert found["tls"]["peers"] == [found["tls"]["server_name"]] == ["disagg.internal"]
        assert ("auth" in found) == (name == "balancer")
        pod = one(objects, "Deployment", f"demo-disagg-{name}")["spec"]["template"]
        volumes = [item["secret"] for item in pod["spec"]["volumes"] if "secret" in item]
        assert {item["secretName"] for item in volumes} == secrets
        files = {mount["mountPath"] for mount in container(pod)["volumeMounts"]}
        assert {str(Path(found["tls"][key]).parent) for key in ("cert_file", "ca_file")} <= files
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container(pod)[probe]["grpc"]["port"] == 50052
    ports = one(objects, "Service", "demo-disagg-balancer")["spec"]["ports"]
    assert {port["appProtocol"] for port in ports} == {"https"}
    test = one(objects, "Pod", "demo-disagg-test-completion")
    assert container(test)["args"][0].startswith("https://")
    assert container(test)["args"][2:] == [
        *("--ca-file", "/etc/disagg/tls/ca.crt", "--keys-file", "/etc/disagg/auth/keys"),
    ]


def test_the_store_forgets_what_nobody_uses(rendered: Rendered) -> None:
    pod = one(rendered(), "Deployment", "demo-disagg-valkey")["spec"]["template"]
    arguments = container(pod)["args"]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options["--maxmemory-policy"] == "volatile-lru"
    assert (options["--save"], options["--appendonly"]) == ("", "no")


def test_settings_reach_the_process_in_its_spelling(rendered: Rendered) -> None:
    objects = rendered(
        "--set",
        "balancer.settings.admission.maxRunning=7,balancer.settings.http.reasoningField=both,"
        "decode.settings.engine.kvMemoryBytes=68719476736,decode.settings.engine.lateScheduling=true",
    )
    balancer = config(objects, "demo-disagg-balancer")
    assert balancer["admission"] == {"max_running": 7}
    assert balancer["http"] == {"host": "0.0.0.0", "port": 8000, "reasoning_field": "both"}
    # A setting that is a map keeps its keys: they are somebody's names.
    weights = {"admission": {"tenantWeights": {"Team-A": 2, "bulkLoad": 0.5}}}
    tenants = rendered("--set-json", f"balancer.settings={json.dumps(weights)}")
    admission = config(tenants, "demo-disagg-balancer")["admission"]
    assert admission == {"tenant_weights": {"Team-A": 2, "bulkLoad": 0.5}}
    engine = config(objects, "demo-disagg-decode")["engine"]
    assert engine == {"kv_memory_bytes": 68719476736, "late_scheduling": True}


def test_gateways_lead_to_the_balancer(rendered: Rendered) -> None:
    objects = rendered(
        "--set",
        "gateway.httpRoute.enabled=true,gateway.httpRoute.parentRefs[0].name=edge,"
        "gateway.httpRoute.hostnames={llm.example.org},"
        "gateway.grpcRoute.enabled=true,gateway.grpcRoute.parentRefs[0].name=edge,"
        "gateway.inferencePool.enabled=true,gateway.inferencePool.endpointPicker.name=picker",
    )
    ports = {
        port["port"] for port in one(objects, "Service", "demo-disagg-balancer")["spec"]["ports"]
    }
    for kind in ("HTTPRoute", "GRPCRoute"):
        route = one(objects, kind, "demo-disagg-balancer")
        assert problem(route) is None
        [backend] = route["spec"]["rules"][0]["backendRefs"]
        assert backend["name"] == "demo-disagg-balancer"
        assert backend["port"] in ports
    pool = one(objects, "InferencePool", "demo-disagg-balancer")
    assert problem(pool) is None
    assert pool["spec"]["targetPorts"] == [{"number": 50051}]


def test_names_follow_the_release(helm: Path) -> None:
    objects = parse(render(helm, release="disagg"))
    assert "disagg-balancer" in of_kind(objects, "Deployment")
    values = "nameOverride=" + "n" * 60 + ",prefill.tiers[0].name=" + "t" * 10
    long = parse(render(helm, "--set", values, release="r" * 50))
    assert all(len(item["metadata"]["name"]) <= 63 for item in long)
    assert {item["kind"]: text for item in long if (text := problem(item))} == {}


def test_further_objects_are_rendered(rendered: Rendered) -> None:
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}
    objects = rendered("--set-json", f"extraObjects={json.dumps([item])}")
    assert "demo-x" in of_kind(objects, "ConfigMap")


def test_traces_name_their_process(rendered: Rendered) -> None:
    objects = rendered("--set", "telemetry.otlpEndpoint=http://c:4317")
    for where, pod in roles(objects).items():
        variables = {entry["name"]: entry.get("value") for entry in container(pod)["env"]}
        assert variables["OTEL_SERVICE_NAME"] == f"disagg-{where.split('-')[-1]}"
        assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://c:4317"


def test_a_rollout_may_take_as_long_as_its_parts(rendered: Rendered) -> None:
    """Kubernetes calls a rollout failed after 600 s of its own; a model may load for longer."""
    values = (
        "prefill.probes.startup.failureThreshold=12,prefill.probes.startup.periodSeconds=10,"
        "balancer.probes.startup.failureThreshold=6,prefill.gpu.count=1"
    )
    deployments = of_kind(rendered("--set", values), "Deployment")
    deadlines = {
        name.split("-")[-1]: item["spec"].get("progressDeadlineSeconds")
        for name, item in deployments.items()
    }
    # Grace of the old pod, time to load, and what Kubernetes grants for the rest; a balancer waits
    # for members, the slowest of which is decode.
    assert deadlines == {
        "prefill": 120 + 120 + 600,
        "decode": 630 + 1800 + 600,
        "balancer": 630 + 1800 + 600,
        "janitor": None,
        "valkey": None,
    }


def test_labels_of_people_stand_once(helm: Path) -> None:
    """A label for all and one for some may be called the same: that of the object counts."""
    values = (
        "commonLabels.team=a,commonLabels.release=x,decode.podLabels.team=b,"
        "metrics.rules.enabled=true,metrics.rules.labels.release=p"
    )
    text = render(helm, "--set", values)
    objects = parse(text)
    pods_of = {name.split("-")[-1]: pod for name, pod in roles(objects).items()}
    assert pods_of["decode"]["metadata"]["labels"]["team"] == "b"
    assert pods_of["prefill"]["metadata"]["labels"]["team"] == "a"
    for rule in of_kind(objects, "PrometheusRule").values():
        assert rule["metadata"]["labels"]["release"] == "p"
    for document in text.split("\n---\n"):
        labels = document.partition("  labels:\n")[2].partition("\nspec:")[0].splitlines()
        keys = [line.partition(":")[0] for line in labels if line.startswith("    ")]
        assert len([key for key in keys if key == "    team"]) <= 1, document


def test_layouts_have_the_ranks_that_engines_count(rendered: Rendered) -> None:
    for layout in ("ep=4", "dp=2,cp=2", "ep=4,attn_tp=2,path=b", "enp=4", "dp=2, ep=4, cp=2"):
        assert parse_layout(layout).layout.world_size == 4
        escaped = layout.replace(",", "\\,")
        objects = rendered("--set", f"decode.ranks=4,decode.layout={escaped}")
        assert config(objects, "demo-disagg-decode")["group"] == {"layout": layout}
