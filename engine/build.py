"""Builds a rank's engine from a model directory: config, layout, weights, pool, runner, engine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from disagg_kernels import Kernels, select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from disagg_kernels.testing import Shapes, row_dependences
from engine.config import EngineSettings, ModelLimits, SettingsError
from engine.engine import LLMEngine
from engine.handoff import KvLayout, weights_revision
from engine.kv_pool import KvPool
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.experts import ExpertPlacement
from engine.model.rebalancer import ExpertRebalancer
from engine.model_runner import ModelRunner
from engine.parallel.dispatch import DispatchShape
from engine.parallel.experts import LoadWindow
from engine.parallel.layout import ExpertSlots
from engine.parallel.ports import Ports, RankContext, open_ports
from engine.plan import StepKind

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
    directory: Path, *, block_tokens: int | None = None, kv_quantisers: str = "auto"
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
    """Loads a rank's part of a model and returns its engine; a collective of the group.

    Args:
        directory: Hugging Face checkpoint directory.
        settings: Cache, scheduler and role; without `block_tokens` the model's default.
        layout: KV layout, if the caller already has it.
        context: Place in the rank group; None is a group of one.
        kv_quantisers: `auto`, `on` or `off`.
        min_redundant: Fewest redundant experts of a layer; equal on all ranks.
        rebalance_interval_steps: Steps between two moves of experts by their load; None never.

    Raises:
        ModelConfigError, CheckpointError: the directory does not hold a servable model.
        SettingsError, LayoutError: settings that contradict each other or the model.
        GroupError: another rank is late or lost.
    """
    if layout is None:
        layout = kv_layout(
            directory, block_tokens=settings.block_tokens, kv_quantisers=kv_quantisers
        )
    if settings.block_tokens not in (None, layout.block_tokens):
        raise SettingsError(
            f"block_tokens is {settings.block_tokens}, but the KV layout has "
            f"{layout.block_tokens}: leave one of them out"
        )
    settings = dataclasses.replace(settings, block_tokens=layout.block_tokens)
    config = layout.config
    if settings.batch_invariant:
        _require_invariance(select_kernels("cpu"), config)
    # The self-test above went through the checks; in every step they would cost a twentieth.
    kernels = select_kernels("cpu", checked=False)
    rows = max(settings.max_num_batched_tokens, ROW_MULTIPLE)
    ports = open_ports(
        context or RankContext(),
        hidden=config.hidden_size,
        top_k=config.num_experts_per_tok,
        max_tokens=rows,
    )
    try:
        parts = _Experts(
            slots=ExpertSlots(
                num_logical=config.n_routed_experts,
                ep=ports.dispatcher.num_ranks,
                min_redundant=min_redundant,
            ),
            shape=DispatchShape(
                hidden=config.hidden_size, top_k=config.num_experts_per_tok, max_tokens=rows
            ),
            interval_steps=rebalance_interval_steps,
        )
        engine = _assemble(directory, settings, layout, kernels, ports, parts)
        ports.ready()
    except BaseException:
        # Peers that have opened theirs must not wait for a rank that will not come.
        ports.abort()
        ports.close()
        raise
    return BuiltEngine(engine=engine, config=config, layout=layout, ports=ports, kernels=kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experts:
    """Where experts are, and how often they move."""

    slots: ExpertSlots
    shape: DispatchShape
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
            ports.dispatcher,
            kernels,
            batch_invariant=batch_invariant,
            placement=ExpertPlacement(
                num_logical=slots.num_logical,
                num_ranks=slots.ep,
                min_redundant=slots.min_redundant,
            ),
            loads=loads,
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


def _assemble(
    directory: Path,
    settings: EngineSettings,
    layout: KvLayout,
    kernels: Kernels,
    ports: Ports,
    experts: _Experts,
) -> LLMEngine:
    config = layout.config
    model, rebalancer = experts.load(
        directory, layout, kernels, ports, batch_invariant=settings.batch_invariant
    )

    def on_step(kind: StepKind) -> None:
        ports.progress.step_kind = kind.value
        if rebalancer is not None:
            rebalancer.before_step()

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
    return LLMEngine(
        settings=settings,
        limits=ModelLimits(
            vocab_size=config.vocab_size,
            max_model_len=config.max_position_embeddings,
            eos_token_ids=config.eos_token_ids,
        ),
        cache=cache,
        runner=runner,
        vote=ports.vote,
        on_step=on_step,
        on_failure=ports.abort,
    )


def _require_invariance(kernels: Kernels, config: ModelConfig) -> None:
    d, width = config.hidden_size, config.head_dim
    inner = config.num_attention_heads * width // config.o_groups
    found = row_dependences(
        kernels,
        Shapes(
            linear=(
                (d, config.q_lora_rank + width),
                (config.q_lora_rank, config.num_attention_heads * width),
                (inner, config.o_lora_rank),
                (config.o_groups * config.o_lora_rank, d),
                (d, config.n_routed_experts),
                (d, 2 * config.moe_intermediate_size),
                (config.moe_intermediate_size, d),
                (config.hc_mult * d, (2 + config.hc_mult) * config.hc_mult),
                (config.hc_mult * d, config.hc_mult),
                (d, min(config.vocab_size, 4096)),
            ),
            group_linear=(config.o_groups, inner, config.o_lora_rank),
            heads=config.num_attention_heads,
            head_dim=width,
            index_heads=config.index_n_heads,
            index_width=config.index_head_dim,
            streams=config.hc_mult,
            hidden=d,
            experts=min(config.n_routed_experts, 16),
            routed=config.n_routed_experts,
            top_k=config.num_experts_per_tok,
            expert_width=config.moe_intermediate_size,
        ),
    )
    if found:
        raise SettingsError(
            "engine.batch_invariant is on, but on this machine rows depend on their neighbours: "
            + "; ".join(found)
            + ". Set engine.batch_invariant to false and accept that equal requests may differ "
            "where two tokens are almost equally likely"
        )
