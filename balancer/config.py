"""Settings of a balancer process; `runtime.settings` loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from balancer.routing.policies import POLICIES
from runtime.bundled import default_model
from runtime.logging import Form, Level
from runtime.serve import DrainSettings, ListenSettings
from runtime.settings import Settings, setting

FOREIGN_SECTIONS = ("group", "engine", "publish", "fetch", "announce", "events")
"""Sections of prefill and decode that may stand in a shared file or environment."""


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
    max_wait_s: float = setting(60.0, help="seconds a request may wait for a place", gt=0)


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
    max_connections: int = setting(2048, help="connections at once", ge=1)
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


class RoutingSettings(Settings):
    """Placement."""

    policy: str = setting(
        "least_outstanding", help=f"placement policy: {', '.join(sorted(POLICIES))}"
    )
    records: int = setting(1024, help="requests whose placement decisions are kept", ge=1)

    @model_validator(mode="after")
    def _known(self) -> RoutingSettings:
        if self.policy not in POLICIES:
            raise ValueError(
                f"policy {self.policy!r} is unknown; there are: {', '.join(sorted(POLICIES))}"
            )
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
    drain: DrainSettings = DrainSettings()
    admission: AdmissionSettings = AdmissionSettings()
    membership: MembershipSettings = MembershipSettings()
    limits: LimitSettings = LimitSettings()
    handoff: HandoffSettings = HandoffSettings()
    routing: RoutingSettings = RoutingSettings()
    http: HttpSettings = HttpSettings()
    facade: FacadeSettings = FacadeSettings()
    log: LogSettings = LogSettings()

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
