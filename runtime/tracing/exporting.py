"""Opens the tracer of a process: resource, sampler, exporter.

Called once per process, after its last fork: an exporter has threads and a connection. The packages
of OpenTelemetry are loaded here, and only if there is somewhere to send spans to.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from runtime.clock import Clock
from runtime.settings import SettingsError, variables_of
from runtime.telemetry import NO_TRACER, Tracer
from runtime.tracing.settings import TracingPlan, TracingSettings, resolve

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler as OtelSampler


class TracingUnavailable(Exception):
    """Spans are to be exported, but what exports them is not installed."""


def plan_of(settings: TracingSettings) -> TracingPlan:
    """What the settings and the environment of this process say.

    Raises:
        SettingsError: A variable has a value we cannot follow.
    """
    return resolve(settings, variables_of("OTEL_"))


@contextlib.asynccontextmanager
async def tracing(
    settings: TracingSettings, *, role: str, version: str, instance: str, clock: Clock, **facts: str
) -> AsyncIterator[Tracer]:
    """The tracer of this process while the body runs; then what is left is sent.

    Raises:
        TracingUnavailable, SettingsError: See `plan_of` and `open_tracer`.
    """
    tracer = open_tracer(
        plan_of(settings), role=role, version=version, instance=instance, clock=clock, **facts
    )
    try:
        yield tracer
    finally:
        if tracer.is_on:
            await asyncio.to_thread(tracer.close)


def open_tracer(
    plan: TracingPlan, *, role: str, version: str, instance: str, clock: Clock, **facts: str
) -> Tracer:
    """The tracer of this process; `NO_TRACER` if nothing is to be recorded.

    Args:
        role: balancer, prefill or decode; names the service unless a variable does.
        instance: Tells this process from others of its role.
        facts: Attributes of the resource beginning with `disagg.`, written `dp_rank="0"`.

    Raises:
        TracingUnavailable: The packages are missing.
        SettingsError: The endpoint cannot be one.
    """
    if not plan.endpoint:
        return NO_TRACER
    if importlib.util.find_spec("opentelemetry") is None:
        raise TracingUnavailable(
            f"spans are to go to {plan.endpoint}, but the packages that send them are missing: "
            "install disagg[trace], or leave tracing.endpoint and OTEL_EXPORTER_OTLP_ENDPOINT empty"
        )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from runtime.tracing.recording import OtelTracer

    resource = resource_of(plan, role=role, version=version, instance=instance, **facts)
    provider = TracerProvider(
        resource=Resource(resource), sampler=_sampler(plan), shutdown_on_exit=False
    )
    delay_ms = None if plan.export_interval_s is None else plan.export_interval_s * 1000
    provider.add_span_processor(BatchSpanProcessor(_exporter(plan), schedule_delay_millis=delay_ms))
    return OtelTracer(
        provider, endpoint=plan.endpoint, clock=clock, duplicates_rpc=plan.duplicates_rpc
    )


def resource_of(
    plan: TracingPlan, *, role: str, version: str, instance: str, **facts: str
) -> Mapping[str, str]:
    """What is said of the process that a span comes from; variables win over what we know."""
    return {
        "service.name": f"disagg-{role}",
        "service.namespace": "disagg",
        "service.version": version,
        "service.instance.id": instance,
        "disagg.role": role,
        **{f"disagg.{key}": value for key, value in facts.items()},
        **(plan.resource or {}),
        **({"service.name": plan.service_name} if plan.service_name else {}),
    }


def _sampler(plan: TracingPlan) -> OtelSampler:
    from opentelemetry.sdk.trace.sampling import (
        ALWAYS_OFF,
        ALWAYS_ON,
        ParentBased,
        TraceIdRatioBased,
    )

    name = plan.sampler.removeprefix("parentbased_")
    roots = {"always_on": ALWAYS_ON, "always_off": ALWAYS_OFF}
    root = roots.get(name) or TraceIdRatioBased(plan.ratio)
    return ParentBased(root) if plan.sampler.startswith("parentbased_") else root


def _exporter(plan: TracingPlan) -> SpanExporter:
    """OTLP over the protocol of the plan."""
    if plan.protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as HttpExporter,
        )

        if not plan.endpoint.startswith(("http://", "https://")):
            raise SettingsError(
                [f"tracing endpoint {plan.endpoint!r}: OTLP over HTTP needs http:// or https://"]
            )
        return HttpExporter(endpoint=plan.endpoint)
    from runtime.tracing.encoding import Exporter

    return Exporter(
        endpoint=plan.endpoint,
        insecure=not plan.endpoint.startswith("https://"),
    )
