"""Where spans go and which are recorded: our settings over the standard OTEL_ variables. Pure.

    endpoint    tracing.endpoint, else OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, else
                OTEL_EXPORTER_OTLP_ENDPOINT, else none: nothing is recorded
    protocol    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, else OTEL_EXPORTER_OTLP_PROTOCOL, else grpc
    sampler     tracing.sample_ratio (parent-based), else OTEL_TRACES_SAMPLER and its _ARG, else
                parentbased_traceidratio 0.1

Headers, certificates, time limits and batch sizes are variables that the SDK itself reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from runtime.settings import Settings, SettingsError, setting

DEFAULT_RATIO: Final = 0.1
Protocol = Literal["grpc", "http/protobuf"]
Sampler = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]
_RESOLVED_BY_GRPC = ("unix:", "dns:")
_BATCH_VARIABLES = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
)
_LIMIT_VARIABLES = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)
_PROPAGATORS = frozenset({"tracecontext", "baggage"})


class TracingSettings(Settings):
    """Spans of requests; OTEL_ variables of the environment count as well."""

    endpoint: str = setting(
        "",
        help="OTLP endpoint for spans, e.g. http://127.0.0.1:4317; empty: as OTEL_ variables say",
    )
    sample_ratio: float | None = setting(
        None,
        help="share of requests recorded, unless the caller decides; empty: as OTEL_ variables say",
        ge=0,
        le=1,
    )
    export_interval_s: float | None = setting(
        None,
        help="seconds a span waits for others to be sent with; empty: as OTEL_ variables say",
        gt=0,
    )
    step_interval: int = setting(
        0,
        help="of so many engine steps one becomes a trace, if sampled; 1000 is enough; 0: none",
        ge=0,
    )
    vllm_attributes: bool = setting(
        False, help="repeat times of a request in the names that vLLM uses"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingPlan:
    """What was resolved; an empty endpoint means that nothing is recorded.

    Attributes:
        duplicates_rpc: Whether attributes of calls are spelled the old way as well.
    """

    endpoint: str = ""
    protocol: Protocol = "grpc"
    sampler: Sampler = "parentbased_traceidratio"
    ratio: float = DEFAULT_RATIO
    service_name: str = ""
    resource: Mapping[str, str] | None = None
    duplicates_rpc: bool = False
    export_interval_s: float | None = None


def resolve(settings: TracingSettings, variables: Mapping[str, str]) -> TracingPlan:
    """The plan of a process.

    Args:
        variables: Those of the environment that begin with OTEL_.

    Raises:
        SettingsError: A variable has a value we cannot follow; it names it, and what can be.
    """
    name, endpoint = _endpoint(settings, variables)
    is_disabled = variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not endpoint or is_disabled or variables.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return TracingPlan()
    protocol = _protocol(variables)
    _check_endpoint(name, endpoint, protocol)
    _check_propagators(variables)
    _check_batches(variables)
    _check_limits(variables)
    sampler, ratio = _sampler(settings, variables)
    return TracingPlan(
        endpoint=endpoint,
        protocol=protocol,
        sampler=sampler,
        ratio=ratio,
        service_name=variables.get("OTEL_SERVICE_NAME", ""),
        resource=_resource(variables.get("OTEL_RESOURCE_ATTRIBUTES", "")),
        export_interval_s=settings.export_interval_s,
        duplicates_rpc="rpc/dup" in variables.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(","),
    )


def _endpoint(settings: TracingSettings, variables: Mapping[str, str]) -> tuple[str, str]:
    """Who names the endpoint, and the endpoint; empty if nobody does."""
    if settings.endpoint:
        return "tracing.endpoint", settings.endpoint
    name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    if traces := variables.get(name, "").strip():
        return f"environment {name}", traces
    name = "OTEL_EXPORTER_OTLP_ENDPOINT"
    base = variables.get(name, "").strip()
    if base and _protocol(variables) == "http/protobuf":  # the specification of OTLP appends it
        base = f"{base.rstrip('/')}/v1/traces"
    return f"environment {name}", base


def _check_endpoint(name: str, endpoint: str, protocol: Protocol) -> None:
    """An exporter takes anything and then fails in silence, span by span."""
    is_grpc = protocol == "grpc"
    if is_grpc and endpoint.startswith(_RESOLVED_BY_GRPC):
        return
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        scheme, host, port, user = parts.scheme, parts.hostname, parts.port, parts.username
    except ValueError:
        scheme, host, port, user = "", None, None, None
    if user is not None:
        # Whoever asks where the spans are is told the endpoint.
        raise SettingsError(
            [f"{name}: holds a user or a password; give them by OTEL_EXPORTER_OTLP_HEADERS"]
        )
    # Without a port gRPC takes 443, where nobody listens without TLS.
    needs_port = is_grpc and scheme != "https"
    schemes = ("", "http", "https") if is_grpc else ("http", "https")
    if not host or port == 0 or (needs_port and port is None) or scheme not in schemes:
        example = "http://127.0.0.1:4317" if is_grpc else "http://127.0.0.1:4318/v1/traces"
        raise SettingsError(
            [
                f"{name} = {endpoint!r}: no address of a collector for {protocol}; give one like "
                f"{example}"
            ]
        )


def _check_batches(variables: Mapping[str, str]) -> None:
    """The SDK passes over numbers that it cannot read."""
    for name in _BATCH_VARIABLES:
        text = variables.get(name, "").strip()
        if text and not (text.isdecimal() and int(text) > 0):
            raise SettingsError([f"environment {name} = {text!r}: give a whole number from 1"])


def _check_limits(variables: Mapping[str, str]) -> None:
    """The SDK ends the process with a sentence of its own; none is no limit."""
    for name in _LIMIT_VARIABLES:
        text = variables.get(name, "").strip()
        if text and not text.isdecimal():
            raise SettingsError(
                [f"environment {name} = {text!r}: give a whole number from 0, or leave it empty"]
            )


def _protocol(variables: Mapping[str, str]) -> Protocol:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        value = variables.get(name, "").strip()
        if not value:
            continue
        for known in get_args(Protocol):
            if value == known:
                protocol: Protocol = known
                return protocol
        raise _unknown(name, value, get_args(Protocol))
    return "grpc"


def _sampler(settings: TracingSettings, variables: Mapping[str, str]) -> tuple[Sampler, float]:
    if settings.sample_ratio is not None:
        return "parentbased_traceidratio", settings.sample_ratio
    text = variables.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    try:
        ratio = float(text) if text else DEFAULT_RATIO
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise SettingsError(
            [f"environment OTEL_TRACES_SAMPLER_ARG = {text!r}: give a share from 0 to 1"]
        )
    value = variables.get("OTEL_TRACES_SAMPLER", "").strip() or "parentbased_traceidratio"
    for known in get_args(Sampler):
        if value == known:
            sampler: Sampler = known
            return sampler, ratio
    raise _unknown("OTEL_TRACES_SAMPLER", value, get_args(Sampler))


def _check_propagators(variables: Mapping[str, str]) -> None:
    """We speak W3C alone: whoever asks for another form would find broken traces."""
    value = variables.get("OTEL_PROPAGATORS", "").strip() or "tracecontext,baggage"
    names = {name.strip() for name in value.split(",") if name.strip()}
    if not names <= _PROPAGATORS or "tracecontext" not in names:
        raise SettingsError(
            [
                f"environment OTEL_PROPAGATORS = {value!r}: only tracecontext and baggage are "
                "spoken; leave it out, or set it to tracecontext,baggage"
            ]
        )


def _resource(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(",") if item.strip())
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def _unknown(name: str, value: str, known: tuple[str, ...]) -> SettingsError:
    return SettingsError([f"environment {name} = {value!r}: give one of {', '.join(known)}"])
