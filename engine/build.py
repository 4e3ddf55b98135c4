"""Builds a rank from a model directory: what can be refused, ports, then what it is made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from disagg_kernels import Kernels, select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.assembly import BuiltEngine, BuiltFollower, ExpertParts, assemble
from engine.config import EngineSettings, SettingsError
from engine.fit import require_layout
from engine.handoff import KvLayout, weights_revision
from engine.invariance import require_invariance
from engine.model.config import ModelConfig
from engine.parallel.dispatch import DispatchShape
from engine.parallel.dispatch_format import DispatchFormat
from engine.parallel.layout import ExpertSlots, RunLayout, data_parallel
from engine.parallel.ports import RankContext, open_ports

# Contexts of released models; below it a model is a test model and gets its smallest clean cut.
_LONG_CONTEXT = 65536
_LONG_BLOCK_TOKENS = 128
_SHORT_BLOCK_TOKENS = 32

QUANTISER_CHOICES = ("auto", "on", "off")


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
    require_layout(config, run, settings.role, min_redundant=min_redundant)
    settings = dataclasses.replace(settings, block_tokens=layout.block_tokens, cp=run.layout.cp)
    kernels = _kernels(config, run, batch_invariant=settings.batch_invariant)
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
        parts = ExpertParts(
            slots=ExpertSlots(
                num_logical=config.n_routed_experts,
                ep=run.layout.ep,
                min_redundant=min_redundant,
            ),
            shape=shape,
            form=form,
            interval_steps=rebalance_interval_steps,
        )
        built = assemble(directory, settings, layout, kernels, ports, parts, context.group_name)
        ports.ready()
    except BaseException:
        # Peers that have opened theirs must not wait for a rank that will not come.
        ports.abort()
        ports.close()
        raise
    return built


def _kernels(config: ModelConfig, run: RunLayout, *, batch_invariant: bool) -> Kernels:
    """The operations, after their self-test on this machine."""
    if batch_invariant:
        require_invariance(
            select_kernels("cpu"),
            config,
            attn_tp=run.layout.attn_tp,
            moe_tp=1 if run.all_to_all else run.layout.replica_size // run.layout.ep,
        )
    # The self-test went through the checks; in every step they would cost a twentieth.
    return select_kernels("cpu", checked=False)


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
