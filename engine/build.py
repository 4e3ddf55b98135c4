"""Builds a rank from a model directory: config, layout, weights, pool, runner, engine.

A rank is an engine of its own, the leader of one with several ranks, or a follower of such a leader
(see `engine.parallel.plans`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from disagg_kernels import Kernels, select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.config import CacheSize, EngineSettings, ModelLimits, SettingsError
from engine.engine import LLMEngine
from engine.fit import require_layout
from engine.handoff import KvLayout, weights_revision
from engine.invariance import require_invariance
from engine.kv_pool import KvPool
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.experts import ExpertPlacement
from engine.model.rebalancer import ExpertRebalancer
from engine.model_runner import ModelRunner
from engine.parallel.dispatch import DispatchShape
from engine.parallel.dispatch_format import DispatchFormat, formatted
from engine.parallel.errors import GroupError
from engine.parallel.experts import LoadWindow
from engine.parallel.layout import ExpertSlots, RunLayout, data_parallel
from engine.parallel.plans.follower import Follower
from engine.parallel.plans.leader import LeadingRunner
from engine.parallel.ports import Ports, RankContext, open_ports
from engine.plan import Runner, StepKind

# Contexts of released models; below it a model is a test model and gets its smallest clean cut.
_LONG_CONTEXT = 65536
_LONG_BLOCK_TOKENS = 128
_SHORT_BLOCK_TOKENS = 32

QUANTISER_CHOICES = ("auto", "on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine and what its users need to know of it."""

    engine: LLMEngine
    config: ModelConfig
    layout: KvLayout
    ports: Ports
    kernels: Kernels
    leading: LeadingRunner | None = None

    def close(self) -> None:
        """Lets followers go and the ports; once, after the last step of the engine."""
        if self.leading is not None:
            # A follower that is lost needs no word.
            with contextlib.suppress(GroupError):
                self.leading.stop()
        self.ports.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFollower:
    """A rank that repeats what its leader's runner does."""

    follower: Follower
    config: ModelConfig
    layout: KvLayout
    ports: Ports
    kernels: Kernels

    def close(self) -> None:
        """Lets the ports go."""
        self.ports.close()


def default_block_tokens(config: ModelConfig) -> int:
    """Tokens of a KV block when nothing else is set: 128, for short test models about 32."""
    wanted = _LONG_BLOCK_TOKENS
    if config.max_position_embeddings < _LONG_CONTEXT:
        wanted = _SHORT_BLOCK_TOKENS
    cut = config.clean_cut
    return -(-wanted // cut) * cut


def quantisers_enabled(config: ModelConfig, choice: str) -> bool:
    """Whether the model's own KV quantisers act: `auto` follows the checkpoint's weight format.

    Raises:
        SettingsError: an unknown choice.
    """
    if choice not in QUANTISER_CHOICES:
        raise SettingsError(
            f"model.kv_quantisers is {choice!r}: use one of {', '.join(QUANTISER_CHOICES)}"
        )
    return config.has_quantised_weights if choice == "auto" else choice == "on"


def kv_layout(
    directory: Path,
    *,
    block_tokens: int | None = None,
    kv_quantisers: str = "auto",
    dispatch_format: str = "float32",
) -> KvLayout:
    """Returns the KV layout that a model directory and these settings give.

    Raises:
        ModelConfigError, LayoutError, SettingsError: see there.
    """
    config = ModelConfig.load(directory)
    return KvLayout(
        config,
        block_tokens=block_tokens or default_block_tokens(config),
        quantisers=quantisers_enabled(config, kv_quantisers),
        weights_revision=weights_revision(directory),
        dispatch_format=dispatch_format,
    )


def build_engine(
    directory: Path,
    settings: EngineSettings,
    *,
    layout: KvLayout | None = None,
    context: RankContext | None = None,
    kv_quantisers: str = "auto",
    min_redundant: int = 0,
    rebalance_interval_steps: int | None = None,
) -> BuiltEngine:
    """Builds a rank that is an engine of its own; see `build_rank`."""
    built = build_rank(
        directory,
        settings,
        layout=layout,
        context=context,
        kv_quantisers=kv_quantisers,
        min_redundant=min_redundant,
        rebalance_interval_steps=rebalance_interval_steps,
    )
    assert isinstance(built, BuiltEngine), "without a layout every rank leads itself"
    return built


def build_rank(
    directory: Path,
    settings: EngineSettings,
    *,
    layout: KvLayout | None = None,
    context: RankContext | None = None,
    run: RunLayout | None = None,
    kv_quantisers: str = "auto",
    dispatch_format: str = "float32",
    min_redundant: int = 0,
    rebalance_interval_steps: int | None = None,
) -> BuiltEngine | BuiltFollower:
    """Loads a rank's part of a model and returns what it is; a collective of the world.

    Args:
        directory: Hugging Face checkpoint directory.
        settings: Cache, scheduler and role; without `block_tokens` the model's default.
        layout: KV layout, if the caller already has it.
        context: Place in the world; None is a world of one.
        run: Layout of the world, equal on all ranks; None is an engine on each rank, all of which
            share the experts.
        kv_quantisers: `auto`, `on` or `off`.
        dispatch_format: What travels to experts, a value of `DispatchFormat`; equal on all ranks.
        min_redundant: Fewest redundant experts of a layer; equal on all ranks.
        rebalance_interval_steps: Steps between two moves of experts by their load; None never.

    Raises:
        ModelConfigError, CheckpointError: the directory does not hold a servable model.
        SettingsError, LayoutError: settings that contradict each other or the model.
        GroupError: another rank is late or lost.
    """
    context = context or RankContext()
    run = run or data_parallel(context.num_ranks)
    if layout is None:
        layout = kv_layout(
            directory,
            block_tokens=settings.block_tokens,
            kv_quantisers=kv_quantisers,
            dispatch_format=dispatch_format,
        )
    if settings.block_tokens not in (None, layout.block_tokens):
        raise SettingsError(
            f"block_tokens is {settings.block_tokens}, but the KV layout has "
            f"{layout.block_tokens}: leave one of them out"
        )
    config = layout.config
    require_layout(config, run, settings.role)
    settings = dataclasses.replace(settings, block_tokens=layout.block_tokens, cp=run.layout.cp)
    if settings.batch_invariant:
        require_invariance(
            select_kernels("cpu"),
            config,
            attn_tp=run.layout.attn_tp,
            moe_tp=1 if run.all_to_all else run.layout.replica_size // run.layout.ep,
        )
    # The self-test above went through the checks; in every step they would cost a twentieth.
    kernels = select_kernels("cpu", checked=False)
    rows = max(settings.max_num_batched_tokens, ROW_MULTIPLE)
    form = _dispatch_format(layout, run)
    shape = DispatchShape(
        hidden=form.row_width(config.hidden_size),
        top_k=config.num_experts_per_tok,
        max_tokens=rows,
        result_hidden=form.result_width(config.hidden_size),
    )
    ports = open_ports(
        context,
        hidden=shape.hidden,
        top_k=shape.top_k,
        max_tokens=shape.max_tokens,
        run=run,
        result_hidden=shape.result_hidden,
    )
    try:
        parts = _Experts(
            slots=ExpertSlots(
                num_logical=config.n_routed_experts,
                ep=run.layout.ep,
                min_redundant=min_redundant,
            ),
            shape=shape,
            form=form,
            interval_steps=rebalance_interval_steps,
        )
        built = _assemble(directory, settings, layout, kernels, ports, parts, context.group_name)
        ports.ready()
    except BaseException:
        # Peers that have opened theirs must not wait for a rank that will not come.
        ports.abort()
        ports.close()
        raise
    return built


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experts:
    """Where experts are, and how often they move."""

    slots: ExpertSlots
    shape: DispatchShape
    form: DispatchFormat
    interval_steps: int | None

    def load(
        self,
        directory: Path,
        layout: KvLayout,
        kernels: Kernels,
        ports: Ports,
        *,
        batch_invariant: bool,
    ) -> tuple[Decoder, ExpertRebalancer | None]:
        """Loads the model, and what moves its experts if they are to move."""
        slots, config = self.slots, layout.config
        loads = None
        if self.interval_steps is not None:
            loads = LoadWindow(config.num_layers, slots.num_logical)
        model = Decoder.load(
            directory,
            config,
            layout,
            formatted(ports.dispatcher, self.form, config.hidden_size),
            kernels,
            batch_invariant=batch_invariant,
            placement=ExpertPlacement(
                num_logical=slots.num_logical,
                num_ranks=slots.ep,
                min_redundant=slots.min_redundant,
            ),
            loads=loads,
            groups=ports.groups,
        )
        if loads is None or self.interval_steps is None:
            return model, None
        return model, ExpertRebalancer(
            model,
            loads,
            slots,
            ports.dispatcher,
            self.shape,
            interval_steps=self.interval_steps,
        )


def _dispatch_format(layout: KvLayout, run: RunLayout) -> DispatchFormat:
    try:
        form = DispatchFormat(layout.dispatch_format)
    except ValueError:
        known = ", ".join(form.value for form in DispatchFormat)
        raise SettingsError(
            f"engine.dispatch_format is {layout.dispatch_format!r}: use one of {known}"
        ) from None
    if form is not DispatchFormat.FLOAT32 and not run.all_to_all:
        raise SettingsError(
            f"engine.dispatch_format is {form.value}, but layout {run} dispatches nothing: use "
            f"{DispatchFormat.FLOAT32.value}, or leave path=a out"
        )
    return form


def _assemble(
    directory: Path,
    settings: EngineSettings,
    layout: KvLayout,
    kernels: Kernels,
    ports: Ports,
    experts: _Experts,
    group: str,
) -> BuiltEngine | BuiltFollower:
    model, rebalancer = experts.load(
        directory, layout, kernels, ports, batch_invariant=settings.batch_invariant
    )

    def on_step(kind: StepKind) -> int | None:
        ports.progress.step_kind = kind.value
        if rebalancer is None:
            return None
        rebalancer.before_step()
        return rebalancer.steps_since_move

    cache = settings.cache_size(layout.block_bytes)
    pool = KvPool(
        layout,
        num_pages=cache.num_pages,
        num_slots=cache.num_state_slots,
        max_tokens=-(-settings.max_num_batched_tokens // ROW_MULTIPLE) * ROW_MULTIPLE,
    )
    runner = ModelRunner(
        model, layout, pool, row_multiple=ROW_MULTIPLE if settings.batch_invariant else 1
    )
    if not ports.is_leader:
        return _follower(layout, kernels, ports, runner, on_step)
    return _leader(settings, cache, layout, kernels, ports, runner, on_step, group)


def _follower(
    layout: KvLayout,
    kernels: Kernels,
    ports: Ports,
    runner: Runner,
    on_step: Callable[[StepKind], int | None],
) -> BuiltFollower:
    assert ports.plans is not None

    def on_step_told(kind: StepKind) -> None:
        # The leader's vote opens its step; here nobody votes.
        ports.ledger.begin_step()
        on_step(kind)

    return BuiltFollower(
        follower=Follower(
            runner,
            ports.plans,
            progress=ports.progress,
            on_step=on_step_told,
            on_failure=ports.abort,
        ),
        config=layout.config,
        layout=layout,
        ports=ports,
        kernels=kernels,
    )


def _leader(
    settings: EngineSettings,
    cache: CacheSize,
    layout: KvLayout,
    kernels: Kernels,
    ports: Ports,
    runner: Runner,
    on_step: Callable[[StepKind], int | None],
    group: str,
) -> BuiltEngine:
    config = layout.config
    leading = LeadingRunner(runner, ports.plans) if ports.plans is not None else None

    def on_step_led(kind: StepKind) -> int | None:
        if leading is not None:
            leading.begin_step(kind)
        return on_step(kind)

    engine = LLMEngine(
        settings=settings,
        limits=ModelLimits(
            vocab_size=config.vocab_size,
            max_model_len=config.max_position_embeddings,
            eos_token_ids=config.eos_token_ids,
        ),
        cache=cache,
        runner=leading or runner,
        vote=ports.vote,
        on_step=on_step_led,
        on_failure=ports.abort,
        group=group,
    )
    return BuiltEngine(
        engine=engine,
        config=config,
        layout=layout,
        ports=ports,
        kernels=kernels,
        leading=leading,
    )
