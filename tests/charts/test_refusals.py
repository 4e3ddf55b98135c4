"""Values that cannot work are refused at render, with a sentence that names the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from charts.golden import RenderError, render

pytestmark = pytest.mark.medium

EXTERNAL = "valkey.enabled=false,externalRedis.url="
MONITORS = "metrics.serviceMonitor.enabled=true"

CASES = {
    "unknown-key": ("prefil.ranks=2", "additional properties 'prefil' not allowed"),
    "unknown-key-deep": ("defaults.gpu.number=2", "additional properties 'number' not allowed"),
    "unknown-setting": (
        "prefill.settings.engine.maxNumSeq=3",
        "at '/prefill/settings/engine': additional properties 'maxNumSeq' not allowed",
    ),
    "setting-out-of-range": ("decode.settings.engine.maxNumSeqs=0", "minimum: got 0, want 1"),
    "setting-of-another-role": ("decode.settings.publish.writers=1", "'publish' not allowed"),
    "setting-that-the-chart-owns": ("decode.settings.listen.port=1", "'port' not allowed"),
    "enumeration": ("balancer.kind=DaemonSet", "must be one of 'Deployment', 'StatefulSet'"),
    "policy": ("balancer.settings.routing.policy=xx", "must be one of 'deepseek'"),
    "size": ("defaults.shmSize=abc", "at '/defaults/shmSize': 'abc' does not match pattern"),
    "model": ("model.path=", "at '/model/path': '' does not match pattern"),
    "name": ("nameOverride=UPPER_case", "at '/nameOverride': 'UPPER_case' does not match"),
    "digest": ("image.digest=foo", "at '/image/digest': 'foo' does not match pattern"),
    "endpoint": (
        "telemetry.otlpEndpoint=notaurl",
        "at '/telemetry/otlpEndpoint': 'notaurl' does not match pattern",
    ),
    "ratio": ("telemetry.samplerRatio=7", "at '/telemetry/samplerRatio'"),
    "port": ("balancer.ports.http=70000", "maximum: got 70,000, want 65,535"),
    "drain": (
        "decode.drain.maxSeconds=700",
        "decode.drain: terminationGracePeriodSeconds 630 is less than preStopSeconds 5 + "
        "propagationSeconds 5 + maxSeconds 700 + 15 = 725",
    ),
    "drain-of-the-balancer": ("balancer.drain.preStopSeconds=60", "balancer.drain: termination"),
    "no-store": ("valkey.enabled=false", "there is no store: set valkey.enabled to true, or"),
    "two-stores": ("externalRedis.url=redis://h", "there is one store; set valkey.enabled"),
    "store-on-one-host": (EXTERNAL + "unix:///s", "externalRedis.url must begin with redis://"),
    "password-in-the-url": (EXTERNAL + "redis://u:secret@h", "holds a password"),
    "certificates": ("tls.mode=mtls", "tls.existingSecret is empty: name the secret"),
    "certificates-without-name": (
        "tls.mode=tls,tls.existingSecret=s,tls.serverName=",
        "tls.serverName is empty",
    ),
    "health-on-a-port-of-ranks": (
        "tls.mode=tls,tls.existingSecret=s,tls.healthPort=50052,decode.ranks=2",
        "tls.healthPort 50052 lies within the gRPC ports of decode",
    ),
    "tls-without-secret": (
        EXTERNAL + "rediss://h,externalRedis.tls.enabled=true",
        "externalRedis.tls.existingSecret is empty: name the secret",
    ),
    "tls-without-tls": (
        EXTERNAL + "redis://h,externalRedis.tls.enabled=true,externalRedis.tls.existingSecret=s",
        "write rediss:// instead of redis://",
    ),
    "certificate-without-key": (
        EXTERNAL + "rediss://h,externalRedis.tls.certKey=tls.crt",
        "certKey and externalRedis.tls.keyKey belong together",
    ),
    "ranks-over-pods": (
        "decode.ranks=6,decode.groupSize=4",
        "decode: groupSize 4 does not divide ranks 6",
    ),
    "group-over-hosts": (
        "decode.ranks=8,decode.groupSize=4",
        "this version cannot run a group over several pods. Set groupSize to 1",
    ),
    "layout-of-other-ranks": (
        "decode.layout=dp=2\\,attn_tp=2,decode.ranks=8",
        "layout dp=2,attn_tp=2 has 4 ranks, but ranks is 8",
    ),
    "too-few-gpus": ("decode.ranks=8,decode.gpu.count=4", "a pod has 8 ranks but gpu.count 4"),
    "two-balancers": ("balancer.replicas=2", "set balancer.kind to StatefulSet"),
    "scaled-deployment": ("balancer.autoscaling.enabled=true", "4 replicas of a Deployment"),
    "same-port-twice": ("balancer.ports.grpc=8000", "http and grpc are both 8000"),
    "ports-beyond": ("decode.ports.grpc=65535,decode.ranks=2", "no room for 2 ranks"),
    "events-on-events": (
        "events.enabled=true,events.replayPort=5558,decode.ranks=2",
        "events.replayPort 5558 lies within the 2 ports of events.port from 5557",
    ),
    "events-on-grpc": ("events.enabled=true,events.port=50051", "lies within the 1 ports"),
    "scaling-backwards": (
        "prefill.autoscaling.enabled=true,prefill.autoscaling.minReplicas=9",
        "prefill.autoscaling: minReplicas 9 exceeds maxReplicas 4",
    ),
    "tier-without-name": ("prefill.tiers[0].ranks=2", "missing property 'name'"),
    "two-tiers-of-a-name": (
        "prefill.tiers[0].name=a,prefill.tiers[1].name=a",
        "prefill.tiers has two entries called a",
    ),
    "fault-in-a-tier": (
        "prefill.tiers[0].name=long,prefill.tiers[0].drain.maxSeconds=900",
        "prefill tier long.drain: terminationGracePeriodSeconds 120 is less than",
    ),
    "setting-by-environment": (
        "prefill.extraEnv[0].name=DISAGG_LOG__LEVEL",
        "settings belong in prefill.settings",
    ),
    "store-without-host": (EXTERNAL + "redis://", "externalRedis.url redis:// has no host, or ''"),
    "store-with-a-space": (EXTERNAL + "redis://a b", "redis://a b has a space or a # in it"),
    "store-at-no-port": (EXTERNAL + "redis://kv:99999999", "has port 99999999: ports are 1 to"),
    "store-at-port-0": (EXTERNAL + "redis://kv:0", "has port 0: ports are 1 to 65535"),
    "store-at-a-word": (EXTERNAL + "redis://kv:abc", "or 'kv:abc', which is none: write redis://h"),
    "store-of-two": (EXTERNAL + "redis://a\\,b", "redis://a,b names 2 servers"),
    "store-of-a-path": (EXTERNAL + "redis://a/b/c", "has /b/c behind its host, where only the"),
    "store-with-an-option": (EXTERNAL + "redis://a?timeout=3", "externalRedis.url says timeout:"),
    "store-of-no-service": (
        EXTERNAL + "redis+sentinel://s1:26379",
        "names no service, or a database that is no number: write redis+sentinel://host:26379,",
    ),
    "sentinel-at-no-port": (EXTERNAL + "redis+sentinel://a\\,b:70000/m", "has port 70000"),
    "password-with-a-slash": (EXTERNAL + "redis://u:se/cret@h", "holds a password"),
    "memory-of-words": ("valkey.maxMemory=lots", "at '/valkey/maxMemory': 'lots' does not match"),
    "memory-without-end": ("valkey.maxMemory=0", "at '/valkey/maxMemory'"),
    "memory-beyond-its-pod": (
        "valkey.maxMemory=100gb",
        "valkey.maxMemory 100gb does not fit valkey.resources.limits.memory 2Gi",
    ),
    "memory-that-is-all-of-its-pod": (
        "valkey.maxMemory=2gb,valkey.resources.limits.memory=2147483648",
        "valkey.maxMemory 2gb does not fit",
    ),
    "shm-beyond-its-pod": (
        "decode.shmSize=8Gi",
        "decode: shmSize 8Gi counts as memory of the pod, and resources.limits.memory is 4Gi",
    ),
    "shm-beyond-a-tier": (
        "prefill.tiers[0].name=long,prefill.tiers[0].resources.limits.memory=0.5Gi",
        "prefill tier long: shmSize 1Gi counts as memory of the pod",
    ),
    "layout-of-words": (
        "decode.layout=banana",
        "decode.layout banana: 'banana' is no part of a layout; join by commas sizes from 1 of dp",
    ),
    "layout-with-a-word": ("decode.layout=dp=2\\,banana=7,decode.ranks=2", "'banana=7' is no part"),
    "layout-of-nothing": ("decode.layout=dp=0", "'dp=0' is no part of a layout"),
    "layout-given-twice": ("decode.layout=dp=2\\,dp=3", "dp is given twice; leave one out"),
    "collector-at-no-port": (
        "telemetry.otlpEndpoint=http://collector:99999",
        "telemetry.otlpEndpoint http://collector:99999 has port 99999: ports are 1 to 65535",
    ),
    "collector-twice": (
        "balancer.settings.tracing.endpoint=http://c:4317",
        "additional properties 'endpoint' not allowed",
    ),
    "interval": ("metrics.serviceMonitor.interval=banana", "at '/metrics/serviceMonitor/interval'"),
    "interval-of-ranks": ("metrics.podMonitor.interval=15", "at '/metrics/podMonitor/interval'"),
    "label-with-a-space": ("commonLabels.team=a b", "at '/commonLabels/team': 'a b' does not"),
    "label-that-is-no-text": ("commonLabels.team=1", "at '/commonLabels/team': got number, want s"),
    "key-of-a-label": (
        "commonLabels.a b=c",
        "commonLabels names 'a b', which is no key of a label",
    ),
    "label-of-the-chart": (
        "commonLabels.app\\.kubernetes\\.io/name=x",
        "commonLabels names app.kubernetes.io/name, a label that the chart sets itself",
    ),
    "label-of-a-pod": (
        "decode.podLabels.llm-d\\.ai/role=x",
        "decode.podLabels names llm-d.ai/role, a label that the chart sets itself",
    ),
    "label-of-a-monitor": (
        "metrics.podMonitor.labels.helm\\.sh/chart=x",
        "metrics.podMonitor.labels names helm.sh/chart",
    ),
    "route-to-nowhere": ("gateway.grpcRoute.enabled=true", "parentRefs is empty"),
    "pool-without-picker": ("gateway.inferencePool.enabled=true", "endpointPicker.name is empty"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_a_sentence(refused: Callable[..., str], name: str) -> None:
    values, sentence = CASES[name]
    assert sentence in " ".join(refused("--set", values).split())


@pytest.mark.parametrize(
    ("values", "api"),
    [
        (MONITORS, "monitoring.coreos.com/v1"),
        ("metrics.rules.enabled=true", "monitoring.coreos.com/v1"),
        ("gateway.httpRoute.enabled=true,gateway.httpRoute.parentRefs[0].name=g", "gateway.net"),
        ("decode.ranks=2,decode.groupSize=2,lws.multiHostPreview=true", "leaderworkerset.x-k8s"),
        (
            "gateway.inferencePool.enabled=true,gateway.inferencePool.endpointPicker.name=e",
            "inference.networking.k8s.io/v1",
        ),
    ],
)
def test_an_api_that_the_cluster_lacks_is_named(helm: Path, values: str, api: str) -> None:
    with pytest.raises(
        RenderError, match=r"needs the API .* install .* or switch it off"
    ) as caught:
        render(helm, "--set", values, apis=())
    assert api in str(caught.value)


def test_an_old_cluster_is_refused(refused: Callable[..., str]) -> None:
    assert "incompatible with Kubernetes v1.31" in refused("--kube-version", "1.31.0")
