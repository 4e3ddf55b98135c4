"""Settings of a balancer process; `runtime.settings` loads them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from balancer.routing.options import RoutingOptions
from balancer.routing.policies import POLICIES
from balancer.routing.quota import FlopCount
from runtime.access import AuthSettings
from runtime.bundled import default_model
from runtime.logging import Form, Level
from runtime.metrics.page import MetricsSettings
from runtime.serve import DrainSettings, ListenSettings
from runtime.settings import Settings, setting
from runtime.tls import TlsSettings
from runtime.tracing.settings import TracingSettings

_ROUTING, _FLOPS = RoutingOptions(), FlopCount()
_CONTROL_CALLS = 128  # heartbeats, probes and the like that are served beside requests


class ModelSettings(Settings):
    """The model whose text is encoded here; weights are not needed."""

    path: Path = setting(
        default_model(),
        help="model directory with config.json and the tokenizer files",
        flag="--model",
    )
    name: str = setting("", help="name the model is served under; empty: that of the directory")


class StoreSettings(Settings):
    """The shared KV store."""

    url: str = setting(help="URL of the KV store, e.g. unix:///run/kv.sock", flag="--store")
    ping_s: float = setting(1.0, help="seconds the store may take to answer a ping", gt=0)


class AdmissionSettings(Settings):
    """Who may run, who waits."""

    max_running: int = setting(256, help="requests in flight at once", ge=1)
    max_waiting: int = setting(512, help="requests that may wait for a place", ge=0)
    max_waiting_per_class: int | None = setting(
        None, help="of those, requests of one length class; absent: all of them", ge=0
    )
    max_wait_s: float = setting(60.0, help="seconds a request may wait for a place", gt=0)
    ageing_s: float = setting(
        10.0, help="seconds of waiting that one step of priority is worth", ge=0
    )
    tenant_weights: dict[str, float] = setting(
        {}, help="share of a tenant (its cache salt) in the queue; others have 1"
    )
    quantum_tokens: int = setting(8192, help="prompt tokens of a tenant's turn", ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> AdmissionSettings:
        if self.max_waiting_per_class is not None and (
            self.max_waiting_per_class > self.max_waiting
        ):
            raise ValueError(
                f"max_waiting_per_class {self.max_waiting_per_class} exceeds max_waiting "
                f"{self.max_waiting}; raise the latter"
            )
        for tenant, weight in self.tenant_weights.items():
            if not (weight > 0 and math.isfinite(weight)):
                raise ValueError(
                    f"tenant_weights: {weight} of {tenant!r} must be positive and finite"
                )
        return self


class MembershipSettings(Settings):
    """Heartbeats of the members."""

    interval_s: float = setting(0.5, help="seconds between two heartbeats of a member", gt=0)
    stale_after_s: float = setting(
        5.0, help="seconds without a heartbeat until a member gets no new work", gt=0
    )
    forget_after_s: float = setting(
        60.0, help="seconds without a heartbeat until a member is forgotten", gt=0
    )

    @model_validator(mode="after")
    def _in_order(self) -> MembershipSettings:
        if not self.interval_s < self.stale_after_s <= self.forget_after_s:
            raise ValueError(
                f"interval_s {self.interval_s} < stale_after_s {self.stale_after_s} <= "
                f"forget_after_s {self.forget_after_s} does not hold; raise the later one"
            )
        return self


class LimitSettings(Settings):
    """Budgets of one request, and of repetitions."""

    default_timeout_s: float = setting(
        600.0, help="seconds for a request that comes without a deadline", gt=0
    )
    max_timeout_s: float = setting(3600.0, help="seconds a request may take at most", gt=0)
    first_token_s: float = setting(300.0, help="seconds from arrival to the first token", gt=0)
    progress_gap_s: float = setting(
        120.0, help="seconds between two signs of life of a member", gt=0
    )
    reserve_s: float = setting(5.0, help="seconds a reservation may take", gt=0)
    slot_wait_s: float = setting(60.0, help="seconds to wait while decode is full", ge=0)
    recovery_wait_s: float = setting(
        10.0, help="seconds a request waits for members or the store to come back", ge=0
    )
    prefill_retries: int = setting(1, help="repetitions after a failed prefill", ge=0)
    decode_retries: int = setting(2, help="repetitions after a failed decode", ge=0)
    retries_per_minute: int = setting(120, help="repetitions of all requests a minute", ge=0)
    suspect_s: float = setting(2.0, help="seconds a member that vanished gets no new work", ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> LimitSettings:
        if self.default_timeout_s > self.max_timeout_s:
            raise ValueError(
                f"default_timeout_s {self.default_timeout_s} exceeds max_timeout_s "
                f"{self.max_timeout_s}; raise the latter"
            )
        return self


class HttpSettings(Settings):
    """The HTTP face."""

    port: int | None = setting(
        None, help="port of the HTTP face; 0 picks a free one", flag="--http", ge=0, le=65535
    )
    host: str = setting("127.0.0.1", help="address of the HTTP face")
    strict_fields: bool = setting(False, help="refuse unknown fields of bodies")
    max_body_bytes: int = setting(16 << 20, help="longest body of a request", ge=1)
    body_timeout_s: float = setting(30.0, help="seconds a body may take to arrive", gt=0)
    max_prompts: int = setting(64, help="prompts of one completion request", ge=1)
    chat_max_tokens: int = setting(
        4096, help="tokens of a chat answer that names no limit, if they fit", ge=1
    )
    keep_alive_s: float = setting(
        15.0, help="seconds of silence until a stream gets a comment line", gt=0
    )
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = setting(
        "both", help="name of the thoughts of a model in chat answers"
    )
    ui: bool = setting(True, help="serve the status page at /ui")
    ui_tenant: str = setting(
        "",
        help="with API keys: tenant whose keys open the status page; empty: keys without a tenant",
    )
    head_timeout_s: float = setting(
        10.0, help="seconds a connection may take for the head of its request", gt=0
    )
    max_connections: int = setting(2048, help="calls at once, and connections", ge=1)
    grace_s: float = setting(1.0, help="seconds a stop waits for its last answers", ge=0)


class HandoffSettings(Settings):
    """From prefill to decode."""

    overlap: bool = setting(
        True, help="decode reads the blocks of a prompt while its last chunks still compute"
    )


class FacadeSettings(Settings):
    """The face for gateways that speak `vllm.grpc.engine`."""

    enabled: bool = setting(True, help="serve it on the gRPC port")
    kv_connector: str = setting(
        "SharedStorageConnector", help="name of a store connector that the gateway knows"
    )


class FlopSettings(Settings):
    """The cost of a prefill before any has been measured."""

    per_token: float = setting(_FLOPS.per_token, help="FLOP of a new token", gt=0)
    per_pair: float = setting(
        _FLOPS.per_pair, help="FLOP of a pair of a new and an earlier token", gt=0
    )
    flops_per_s: float = setting(
        _FLOPS.flops_per_s, help="FLOP a second that one engine sustains", gt=0
    )
    fixed_s: float = setting(_FLOPS.fixed_s, help="seconds of a prefill apart from that", gt=0)


class RoutingSettings(Settings):
    """Placement."""

    policy: str = setting("deepseek", help=f"placement policy: {', '.join(sorted(POLICIES))}")
    records: int = setting(1024, help="requests whose placement decisions are kept", ge=1)
    lookup_s: float = setting(
        0.1, help="seconds to find out what of a prompt is stored; 0: do not ask", ge=0
    )
    record_path: Path | None = setting(
        None, help="new file that every input of placement is written to, for a replay"
    )
    record_max_bytes: int = setting(1 << 30, help="size at which such a file ends", ge=1)
    boundaries: tuple[int, ...] = setting(
        _ROUTING.boundaries, help="prompt lengths at which a new length class begins"
    )
    flops: FlopSettings = FlopSettings()
    forgetting: float = setting(
        _ROUTING.forgetting, help="weight of a measured prefill once the next came", gt=0, le=1
    )
    first_output_tokens: float = setting(
        _ROUTING.first_output_tokens, help="expected answer before one has ended"
    )
    round_s: float = setting(_ROUTING.round_s, help="seconds between two looks at engine shares")
    max_moves: int = setting(_ROUTING.max_moves, help="engines that may change class in a round")
    min_gain: float = setting(
        _ROUTING.min_gain, help="share by which the worst backlog must fall for a move"
    )
    starvation_s: float = setting(
        _ROUTING.starvation_s, help="longest wait for an engine of one's own length class"
    )
    give_way_s: float = setting(
        _ROUTING.give_way_s, help="seconds that a request which is late lets others go first"
    )
    refuse_late: Literal["stated", "always", "never"] = setting(
        _ROUTING.refuse_late,
        help="refuse what would miss its first-token target everywhere: if the caller stated one, "
        "always, or never",
    )
    reserve_share: float = setting(
        _ROUTING.reserve_share, help="share of a decode member's KV kept free at admission"
    )
    look_ahead: int = setting(
        _ROUTING.look_ahead, help="requests prefilled for a decode member beyond its slots"
    )
    replicas: int = setting(_ROUTING.replicas, help="balancers that share these members")
    salt: str = setting(_ROUTING.salt, help="name of this balancer among its replicas")
    ttft_slo_s: float = setting(
        _ROUTING.ttft_slo_s, help="first-token target in seconds, its constant part"
    )
    ttft_slo_per_token_s: float = setting(
        _ROUTING.ttft_slo_per_token_s, help="first-token target, part of each prompt token"
    )
    tpot_slo_s: float = setting(_ROUTING.tpot_slo_s, help="target per output token in seconds")
    transfer_s_per_token: float = setting(
        _ROUTING.transfer_s_per_token, help="seconds to fetch one token's KV from elsewhere"
    )
    step_s: float = setting(_ROUTING.step_s, help="mooncake: seconds of a decode step")
    step_s_per_request: float = setting(
        _ROUTING.step_s_per_request, help="mooncake: what a running request adds to it"
    )
    step_s_per_token: float = setting(
        _ROUTING.step_s_per_token, help="mooncake: what a token of KV adds to it"
    )
    busy_at: int = setting(
        _ROUTING.busy_at, help="ondemand: outstanding requests at which prefill refuses"
    )
    prefill_scale: float = setting(
        _ROUTING.prefill_scale, help="dynamo_kv: weight of prefill tokens"
    )
    temperature: float = setting(
        _ROUTING.temperature, help="dynamo_kv: softness of the choice; 0 takes the best"
    )
    weights: dict[str, float] = setting(
        dict(_ROUTING.weights), help="llmd_weighted: weight of each scorer"
    )
    bucket_drift: float = setting(
        _ROUTING.bucket_drift, help="sgl_bucket: ratio of loads at which buckets are cut anew"
    )

    def options(self) -> RoutingOptions:
        """As policies take them.

        Raises:
            ValueError: An option cannot be; the message names it and its value.
        """
        names = {field.name for field in dataclasses.fields(RoutingOptions)} - {"flops"}
        values = {name: getattr(self, name) for name in names}
        return RoutingOptions(**values, flops=FlopCount(**self.flops.model_dump()))

    @model_validator(mode="after")
    def _known(self) -> RoutingSettings:
        if self.policy not in POLICIES:
            raise ValueError(
                f"policy {self.policy!r} is unknown; there are: {', '.join(sorted(POLICIES))}"
            )
        self.options()
        return self


class LogSettings(Settings):
    """Logs on standard error."""

    level: Level = setting("info", help="lowest level that is written")
    form: Form = setting("json", help="json for machines, console for people")


class BalancerSettings(Settings):
    """Everything a balancer can be told."""

    model: ModelSettings = ModelSettings()
    store: StoreSettings
    listen: ListenSettings = ListenSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    drain: DrainSettings = DrainSettings()
    admission: AdmissionSettings = AdmissionSettings()
    membership: MembershipSettings = MembershipSettings()
    limits: LimitSettings = LimitSettings()
    handoff: HandoffSettings = HandoffSettings()
    routing: RoutingSettings = RoutingSettings()
    http: HttpSettings = HttpSettings()
    facade: FacadeSettings = FacadeSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    metrics: MetricsSettings = MetricsSettings()

    @model_validator(mode="after")
    def _heartbeats_get_through(self) -> BalancerSettings:
        admission, calls = self.admission, self.listen.max_concurrent_calls
        wanted = admission.max_running + admission.max_waiting + _CONTROL_CALLS
        if calls < wanted:
            raise ValueError(
                f"listen.max_concurrent_calls {calls} leaves no room for heartbeats beside "
                f"admission.max_running {admission.max_running} and admission.max_waiting "
                f"{admission.max_waiting}; raise it to {wanted} or lower those"
            )
        return self
