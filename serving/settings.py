"""Settings of every process with an engine; a service adds its own sections and defaults."""

from pathlib import Path
from typing import Literal

from pydantic import field_validator

from runtime.bundled import default_model
from runtime.logging import Form, Level
from runtime.metrics.page import MetricsSettings
from runtime.serve import DrainSettings, ListenSettings
from runtime.settings import Settings, setting
from runtime.tls import TlsSettings
from runtime.tracing.settings import TracingSettings

_MAX_PORT = 65_535


class ModelSettings(Settings):
    """The model that is served."""

    path: Path = setting(default_model(), help="checkpoint directory of the model", flag="--model")
    name: str = setting("", help="name the model is served under; empty: that of the directory")
    kv_quantisers: Literal["auto", "on", "off"] = setting(
        "auto", help="the model's own KV quantisers; auto follows the weight format"
    )


class GroupSettings(Settings):
    """The ranks that run in lockstep."""

    ranks: int = setting(1, help="rank processes, each an engine", flag="--ranks", ge=1)
    layout: str = setting(
        "",
        help="sizes of the parallel axes, e.g. dp=4,cp=2,ep=8, instead of ranks",
        flag="--layout",
    )
    name: str = setting(help="name of the group, unique in a cluster", flag="--group")
    backend: Literal["shm", "gloo", "deep_ep"] = setting(
        "shm", help="transport between the ranks; deep_ep needs GPUs and an adapter to come"
    )
    collective_timeout_s: float = setting(30.0, help="seconds a collective may take", gt=0)
    start_timeout_s: float = setting(300.0, help="seconds the ranks may take to meet", gt=0)


class EngineSection(Settings):
    """One engine; the rest follows from the model."""

    block_tokens: int | None = setting(
        None, help="tokens of a KV block; empty: what suits the model", ge=1
    )
    kv_memory_bytes: int = setting(64 << 20, help="bytes of KV pages of one rank", gt=0)
    max_num_seqs: int = setting(help="sequences that hold memory at once", ge=1)
    max_num_batched_tokens: int = setting(help="rows of one step", ge=1)
    max_waiting: int = setting(1024, help="sequences that may wait in the engine", ge=1)
    max_model_len: int | None = setting(None, help="lowers the context of the model", ge=2)
    batch_invariant: bool = setting(True, help="rows never depend on their neighbours")
    late_scheduling: bool = setting(
        False, help="prepare a step while the decode step before it runs; equal on all ranks"
    )
    dispatch_format: Literal["float32", "fp8", "fp8_bf16"] = setting(
        "float32", help="numbers that travel to experts and back; others than float32 round them"
    )
    min_redundant: int = setting(0, help="redundant experts of a layer, at least", ge=0)
    rebalance_interval_steps: int | None = setting(
        None, help="steps between moves of experts by their load; empty: never", ge=1
    )


class StoreSection(Settings):
    """The shared KV store; all but the URL are fields of `kvstore.config.KvStoreConfig`."""

    url: str = setting(help="URL of the KV store, e.g. unix:///run/kv.sock", flag="--store")
    timeout_s: float = setting(5.0, help="seconds one answer of the store may take", gt=0)
    cache_ttl_s: float = setting(3600.0, help="seconds a shared block lives unused", gt=0)
    handoff_ttl_s: float = setting(600.0, help="seconds the blocks of a hand-off live", gt=0)


class AnnounceSettings(Settings):
    """Who hears of this process."""

    balancers: tuple[str, ...] = setting(
        (), help="host:port of every balancer, separated by commas", flag="--balancer"
    )

    @field_validator("balancers")
    @classmethod
    def _dialled(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            port = name.rpartition(":")[2]
            if ":" not in name or (port.isdecimal() and not 1 <= int(port) <= _MAX_PORT):
                raise ValueError(f"{name!r} has no port from 1 to {_MAX_PORT}; write host:port")
        return names


class LimitSettings(Settings):
    """Bounds of one call."""

    default_timeout_s: float = setting(
        600.0, help="seconds for a call that comes without a deadline", gt=0
    )


class LogSettings(Settings):
    """Logs on standard error."""

    level: Level = setting("info", help="lowest level that is written")
    form: Form = setting("json", help="json for machines, console for people")


class EngineProcessSettings(Settings):
    """The sections of every process with an engine."""

    model: ModelSettings = ModelSettings()
    group: GroupSettings
    engine: EngineSection
    store: StoreSection
    announce: AnnounceSettings = AnnounceSettings()
    listen: ListenSettings = ListenSettings()
    tls: TlsSettings = TlsSettings()
    drain: DrainSettings = DrainSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    metrics: MetricsSettings = MetricsSettings()
