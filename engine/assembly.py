"""What a rank is made of once its ports are open: weights, pool, runner, and an engine if it leads.

A rank is an engine of its own, the leader of one with several ranks, or a follower of such a leader
(see `engine.parallel.plans`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from disagg_kernels import Kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.config import CacheSize, EngineSettings, ModelLimits
from engine.engine import LLMEngine
from engine.handoff import KvLayout
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
from engine.parallel.layout import ExpertSlots
from engine.parallel.plans.follower import Follower
from engine.parallel.plans.leader import LeadingRunner
from engine.parallel.ports import Ports
from engine.plan import AgreedStep, Runner
from engine.statistics import ExpertMoves


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParts:
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


def assemble(
    directory: Path,
    settings: EngineSettings,
    layout: KvLayout,
    kernels: Kernels,
    ports: Ports,
    experts: ExpertParts,
    group: str,
) -> BuiltEngine | BuiltFollower:
    """Loads a rank's part of the model and puts a leader or a follower around it.

    Args:
        directory: Hugging Face checkpoint directory.
        settings, layout: Of the engine, complete.
        kernels: The operations.
        ports: Of this rank, open.
        experts: Where experts are.
        group: Name of the world, for messages.

    Raises:
        CheckpointError: The directory does not hold the model.
        SettingsError: Settings that contradict the model.
    """
    model, rebalancer = experts.load(
        directory, layout, kernels, ports, batch_invariant=settings.batch_invariant
    )

    def on_step(agreed: AgreedStep) -> ExpertMoves | None:
        ports.progress.begin_step(agreed.step, agreed.kind.value, agreed.vote)
        if rebalancer is None:
            return None
        rebalancer.before_step()
        return rebalancer.moves

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
    on_step: Callable[[AgreedStep], ExpertMoves | None],
) -> BuiltFollower:
    assert ports.plans is not None

    def on_step_told(agreed: AgreedStep) -> None:
        # The leader's vote opens its step; here nobody votes.
        ports.ledger.begin_step()
        on_step(agreed)

    return BuiltFollower(
        follower=Follower(
            runner,
            ports.plans,
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
    on_step: Callable[[AgreedStep], ExpertMoves | None],
    group: str,
) -> BuiltEngine:
    config = layout.config
    leading = LeadingRunner(runner, ports.plans) if ports.plans is not None else None

    def on_step_led(agreed: AgreedStep) -> ExpertMoves | None:
        if leading is not None:
            leading.begin_step(agreed)
        return on_step(agreed)

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
        gathers_rows=ports.groups.gathers_rows,
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
