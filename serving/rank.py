"""The process of one rank that runs an engine, and the supervisor of a group of them.

`supervise` checks what can be checked at once and starts one process per rank; `serve_rank` builds
the engine of a rank, opens the store and serves until it is asked to stop. What is served is a
`Role`: the one thing in which the services differ.

An engine of several ranks is served by its leader, which is one member of the cluster. Its
followers have no server, no store and no heartbeat; they repeat what the leader's runner does and
end when it does.
"""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from typing import TypeVar

from disagg.admin import SERVICE as ADMIN_SERVICE
from engine.assembly import BuiltEngine, BuiltFollower
from engine.async_engine import AsyncEngine
from engine.build import build_rank, kv_layout
from engine.config import EngineRole, EngineSettings, SettingsError
from engine.fit import require_layout
from engine.handoff import KvLayout
from engine.model.weights import load_weights
from engine.parallel.backends import require_backend
from engine.parallel.errors import BackendMissing
from engine.parallel.layout import RunLayout, data_parallel, parse_layout
from engine.parallel.worker import RankContext, run_group
from kvstore.config import KvStoreConfig, parse_url, with_files
from kvstore.errors import KvStoreError
from kvstore.measures import StoreMeasures
from kvstore.store import KvStore, open_store
from runtime.build import software_version, tell_build
from runtime.clock import Clock, SystemClock
from runtime.errors import ExitCode
from runtime.logging import configure_logging, get_logger
from runtime.metrics import Metrics
from runtime.metrics.page import PageError, serving_page
from runtime.rank import LEAVE_S, RankPlan, new_member_id, run_rank
from runtime.security import open_security
from runtime.serve import ListenError, check_addresses
from runtime.settings import SettingsError as BadProcessSettings
from runtime.settings import load_process
from runtime.startup import exits, settle
from runtime.telemetry import current_trace_id
from runtime.tracing.exporting import TracingUnavailable, plan_of, tracing
from serving.gauges import step_observer, watch_engine
from serving.member import announcer, equipment
from serving.role import Parts, Role
from serving.settings import EngineProcessSettings
from serving.steps import step_spans, together

_log = get_logger(__name__)

STARTUP_ERRORS: Mapping[type[Exception], ExitCode] = {
    # Settings, config.json, checkpoint and layout: all are kinds of ValueError.
    ValueError: ExitCode.CONFIGURATION,
    FileNotFoundError: ExitCode.CONFIGURATION,
    ListenError: ExitCode.CONFIGURATION,
    PageError: ExitCode.CONFIGURATION,
    BackendMissing: ExitCode.DEPENDENCY,
    KvStoreError: ExitCode.DEPENDENCY,
    BadProcessSettings: ExitCode.CONFIGURATION,
    TracingUnavailable: ExitCode.DEPENDENCY,
}

S = TypeVar("S", bound=EngineProcessSettings)


def run_layout(settings: EngineProcessSettings) -> RunLayout:
    """The layout of the group: that of the settings, or an engine on each of `ranks`.

    Raises:
        LayoutError: There is no such layout.
    """
    if settings.group.layout:
        return parse_layout(settings.group.layout)
    return data_parallel(settings.group.ranks)


def check_settings(settings: EngineProcessSettings) -> None:
    """What can be told of settings alone: tracing, layout, and where the store is.

    Raises:
        runtime.settings.SettingsError: They say what no start would accept.
    """
    plan_of(settings.tracing)
    try:
        _agreed_layout(settings)
        with_files(_store_config(settings, 1, "check", 0), parse_url(settings.store.url))
    except ValueError as error:
        raise BadProcessSettings(str(error).splitlines()) from error


def preflight(settings: EngineProcessSettings, kind: EngineRole) -> None:
    """Checks layout, addresses, model directory and store before any rank is started.

    Raises:
        Exception: Of the classes of `STARTUP_ERRORS`.
    """
    plan_of(settings.tracing)
    run = _agreed_layout(settings)
    require_backend(settings.group.backend)
    check_addresses(settings.listen, run.layout.num_engines)
    open_security(settings.tls, role=kind.value, metrics=Metrics())
    layout = _layout(settings)
    require_layout(layout.config, run, kind, min_redundant=settings.engine.min_redundant)
    load_weights(settings.model.path, layout.config)
    with closing(_open_store(settings, layout, "preflight", 0, SystemClock())) as store:
        store.ping()


def _agreed_layout(settings: EngineProcessSettings) -> RunLayout:
    group, run = settings.group, run_layout(settings)
    if group.layout and "ranks" in group.model_fields_set and group.ranks != run.layout.world_size:
        raise SettingsError(
            f"group.ranks is {group.ranks}, but layout {run} has {run.layout.world_size} ranks: "
            "leave one of them out"
        )
    return run


def supervise(role: Role[S], arguments: Sequence[str] | None = None) -> int:
    """Loads the settings, checks what can be checked at once, and runs the ranks; the exit code.

    Args:
        role: What the ranks are.
        arguments: The command line; that of the process if absent.

    Raises:
        SystemExit: Bad settings or model (2), or a store that does not answer (3).
    """
    settings = load_process(
        role.settings,
        arguments,
        prog=role.prog,
        description=role.description,
        example=f"python -m {role.prog} --model models/tiny-v4 --store redis://127.0.0.1:6379 "
        "--balancer 127.0.0.1:50051 --ranks 2",
        foreign_sections=role.foreign_sections,
        check=check_settings,
    ).value
    configure_logging(level=settings.log.level, form=settings.log.form, facts={"role": role.name})
    with exits(role.prog, STARTUP_ERRORS):
        preflight(settings, role.kind)
        return run_group(
            role.entry,
            run_layout(settings).layout.world_size,
            {"settings": settings.model_dump_json()},
            backend=settings.group.backend,
            group_name=settings.group.name,
            collective_timeout_s=settings.group.collective_timeout_s,
            start_timeout_s=settings.group.start_timeout_s,
            drain_timeout_s=settings.drain.max_s + 2 * LEAVE_S,
        )


def serve_rank(
    role: Role[S], context: RankContext, options: Mapping[str, str | int | float | bool | None]
) -> None:
    """Runs one rank until it is asked to stop.

    Args:
        role: What it is.
        context: Its place in the group.
        options: `settings`: all settings as JSON.

    Raises:
        SystemExit: The rank cannot start, or failed.
    """
    settings = role.settings.model_validate_json(str(options["settings"]))
    configure_logging(
        level=settings.log.level,
        form=settings.log.form,
        facts={"role": role.name, "group": context.group_name, "rank": str(context.rank)},
    )
    with exits(f"{settings.group.name}-r{context.rank}", STARTUP_ERRORS):
        built = _build(role, settings, context)
        try:
            if isinstance(built, BuiltFollower):
                _follow(role, context, settings, built)
            else:
                asyncio.run(_serve(role, context, settings, built))
        finally:
            built.close()


def _follow(role: Role[S], context: RankContext, settings: S, built: BuiltFollower) -> None:
    # A follower drains by following: its leader is asked to stop, and ends it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leader = built.ports.run.layout.leader_of(context.rank)
    # It counts nothing itself, but a scraper has to see that it is there.
    metrics = _metrics(role, settings, context.rank)
    tell_build(metrics, role=role.name, version=software_version())
    with serving_page(metrics, settings.metrics, context.rank) as page:
        _log.info("rank.following", rank=context.rank, leader=leader, metrics=page)
        built.follower.follow()
    _log.info("rank.ended", rank=context.rank)


def _build(role: Role[S], settings: S, context: RankContext) -> BuiltEngine | BuiltFollower:
    section = settings.engine
    return build_rank(
        settings.model.path,
        EngineSettings(
            role=role.kind,
            kv_memory_bytes=section.kv_memory_bytes,
            max_num_seqs=section.max_num_seqs,
            max_num_batched_tokens=section.max_num_batched_tokens,
            max_waiting=section.max_waiting,
            max_model_len=section.max_model_len,
            batch_invariant=section.batch_invariant,
            late_scheduling=section.late_scheduling,
            rank=context.rank,
            num_ranks=context.num_ranks,
        ),
        layout=_layout(settings),
        context=context,
        run=run_layout(settings),
        kv_quantisers=settings.model.kv_quantisers,
        min_redundant=section.min_redundant,
        rebalance_interval_steps=section.rebalance_interval_steps,
    )


async def _serve(role: Role[S], context: RankContext, settings: S, built: BuiltEngine) -> None:
    clock, layout = SystemClock(), built.layout
    number = context.rank // built.ports.run.engine_size
    metrics = _metrics(role, settings, number)
    member_id = new_member_id(role.name, context.group_name, number)
    async with AsyncExitStack() as stack:
        threads = {
            name: stack.enter_context(ThreadPoolExecutor(size, name))
            for name, size in role.threads(settings).items()
        }
        # Of its own: a rank is not unready because its other threads are busy.
        pinger = stack.enter_context(ThreadPoolExecutor(1, "ping"))
        store = stack.enter_context(
            closing(_open_store(settings, layout, member_id, number, clock))
        )
        store.observe(StoreMeasures(metrics))
        version = software_version()
        tracer = await stack.enter_async_context(
            tracing(
                settings.tracing,
                role=role.name,
                version=version,
                instance=member_id,
                clock=clock,
                dp_rank=str(number),
                group=context.group_name,
            )
        )
        engine = AsyncEngine(
            built.engine,
            clock=clock.now,
            on_step=together(
                step_observer(metrics, role.kind),
                step_spans(tracer, settings.tracing.step_interval, clock),
            ),
        )
        watch_engine(metrics, engine, role.kind, block_tokens=layout.block_tokens)
        tell_build(metrics, role=role.name, version=version, fingerprint=store.fingerprint.hex())
        page = stack.enter_context(serving_page(metrics, settings.metrics, context.rank))
        parts = Parts(
            settings=settings,
            engine=engine,
            store=store,
            layout=layout,
            clock=clock,
            metrics=metrics,
            threads=threads,
        )
        service = role.open(parts)
        settle()
        await run_rank(
            RankPlan(
                role=role.name,
                rank=number,
                services=[role.service, ADMIN_SERVICE],
                work=role.work,
                listen=settings.listen,
                drain=settings.drain,
                errors=role.errors(),
                metrics=metrics,
                clock=clock,
                executor=pinger,
                step_loop=engine,
                dependency="store",
                ping=store.ping,
                equip=equipment(role, parts, service),
                announce=announcer(role, context, parts, built, member_id, number, page),
                on_tick=service.on_tick,
                tracer=tracer,
                security=open_security(settings.tls, role=role.name, metrics=metrics, rank=number),
            )
        )


def _metrics(role: Role[S], settings: S, number: int) -> Metrics:
    return Metrics(
        role=role.name,
        model=settings.model.name or settings.model.path.resolve().name,
        rank=number,
        per_rank=settings.metrics.per_rank,
        with_aliases=settings.metrics.vllm_aliases,
        trace_id=current_trace_id,
    )


def _layout(settings: EngineProcessSettings) -> KvLayout:
    return kv_layout(
        settings.model.path,
        block_tokens=settings.engine.block_tokens,
        kv_quantisers=settings.model.kv_quantisers,
        dispatch_format=settings.engine.dispatch_format,
    )


def _store_config(
    settings: EngineProcessSettings, block_tokens: int, owner: str, rank: int
) -> KvStoreConfig:
    return KvStoreConfig(
        block_tokens=block_tokens,
        owner=owner,
        owner_rank=rank,
        **settings.store.model_dump(exclude={"url"}),
    )


def _open_store(
    settings: EngineProcessSettings, layout: KvLayout, owner: str, rank: int, clock: Clock
) -> KvStore:
    config = _store_config(settings, layout.block_tokens, owner, rank)
    return open_store(settings.store.url, config, fingerprint=layout.fingerprint, clock=clock.now)
