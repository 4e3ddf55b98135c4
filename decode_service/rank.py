"""The process of one decode rank, and the supervisor of a group of them.

`main` checks what can be checked at once and starts one process per rank; `serve_rank` builds the
engine of a rank, opens the store and serves until it is asked to stop.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing

from decode_service.config import DecodeSettings
from decode_service.credits import Credits
from decode_service.decode import DecodePath
from decode_service.fetcher import Fetcher
from decode_service.server import SERVICE, WORK, DecodeServicer, error_map
from disagg.admin import SERVICE as ADMIN_SERVICE
from disagg.admin import AdminServicer
from disagg.announce import Announcement, MemberCard, beat_over
from disagg.v1 import admin_pb2_grpc, decode_pb2_grpc, membership_pb2
from engine.async_engine import AsyncEngine
from engine.build import BuiltEngine, build_engine, kv_layout
from engine.config import EngineRole, EngineSettings
from engine.handoff import KvLayout
from engine.model.weights import load_weights
from engine.parallel.worker import RankContext, run_group
from kvstore.config import KvStoreConfig
from kvstore.errors import KvStoreError
from kvstore.store import KvStore, open_store
from runtime.budget import Budget
from runtime.channel import open_channel
from runtime.clock import Clock, SystemClock, system_random
from runtime.errors import ExitCode
from runtime.heartbeat import Heartbeat
from runtime.logging import configure_logging
from runtime.metrics import Metrics
from runtime.rank import LEAVE_S, RankPlan, gauges, installed_version, new_member_id, run_rank
from runtime.serve import Host, ListenError, StopSignals, check_addresses
from runtime.settings import load_process
from runtime.startup import exits

ROLE = "decode"
PROG = "decode_service"
# A file or environment may hold the settings of all roles; these sections are not ours.
FOREIGN_SECTIONS = ("admission", "membership", "publish", "routing")

STARTUP_ERRORS: Mapping[type[Exception], ExitCode] = {
    # Settings, config.json, checkpoint and layout: all are kinds of ValueError.
    ValueError: ExitCode.CONFIGURATION,
    FileNotFoundError: ExitCode.CONFIGURATION,
    ListenError: ExitCode.CONFIGURATION,
    KvStoreError: ExitCode.DEPENDENCY,
}


def preflight(settings: DecodeSettings) -> None:
    """Checks addresses, model directory and store before any rank is started.

    Raises:
        Exception: Of the classes of `STARTUP_ERRORS`.
    """
    check_addresses(settings.listen, settings.group.ranks)
    layout = kv_layout(
        settings.model.path,
        block_tokens=settings.engine.block_tokens,
        kv_quantisers=settings.model.kv_quantisers,
    )
    load_weights(settings.model.path, layout.config)
    with closing(_open_store(settings, layout, "preflight", 0, SystemClock())) as store:
        store.ping()


def serve_rank(
    context: RankContext, options: Mapping[str, str | int | float | bool | None]
) -> None:
    """Runs one rank until it is asked to stop; the entry of a rank process.

    Args:
        context: Its place in the group.
        options: `settings`: all settings as JSON.

    Raises:
        SystemExit: The rank cannot start, or failed.
    """
    settings = DecodeSettings.model_validate_json(str(options["settings"]))
    configure_logging(
        level=settings.log.level,
        form=settings.log.form,
        facts={"role": ROLE, "group": context.group_name, "rank": str(context.rank)},
    )
    with exits(f"{settings.group.name}-r{context.rank}", STARTUP_ERRORS):
        built = build_engine(
            settings.model.path,
            EngineSettings(
                role=EngineRole.DECODE,
                kv_memory_bytes=settings.engine.kv_memory_bytes,
                max_num_seqs=settings.engine.max_num_seqs,
                max_num_batched_tokens=settings.engine.max_num_batched_tokens,
                max_waiting=settings.engine.max_waiting,
                max_model_len=settings.engine.max_model_len,
                batch_invariant=settings.engine.batch_invariant,
                rank=context.rank,
                num_ranks=context.num_ranks,
            ),
            layout=kv_layout(
                settings.model.path,
                block_tokens=settings.engine.block_tokens,
                kv_quantisers=settings.model.kv_quantisers,
            ),
            context=context,
            kv_quantisers=settings.model.kv_quantisers,
            min_redundant=settings.engine.min_redundant,
            rebalance_interval_steps=settings.engine.rebalance_interval_steps,
        )
        try:
            asyncio.run(_serve(context, settings, built))
        finally:
            built.ports.close()


async def _serve(context: RankContext, settings: DecodeSettings, built: BuiltEngine) -> None:
    clock, metrics, layout = SystemClock(), Metrics(), built.layout
    member_id = new_member_id(ROLE, context.group_name, context.rank)
    with (
        ThreadPoolExecutor(settings.fetch.readers, "read") as executor,
        # Of its own: a rank is not unready because its other threads are busy.
        ThreadPoolExecutor(1, "ping") as pinger,
        closing(_open_store(settings, layout, member_id, context.rank, clock)) as store,
    ):
        engine = AsyncEngine(built.engine, clock=clock.now)
        path = DecodePath(
            engine=engine,
            fetcher=Fetcher(
                store=store, layout=layout, executor=executor, clock=clock, metrics=metrics
            ),
            fingerprint=layout.fingerprint,
            credits=Credits(ttl_s=settings.fetch.credit_ttl_s),
            budget=Budget(
                "bytes of fetched KV",
                settings.fetch.max_bytes_in_flight,
                max_waiting=settings.fetch.max_waiting,
            ),
            clock=clock,
        )

        def equip(host: Host) -> None:
            servicer = DecodeServicer(
                path,
                credit_ttl_s=settings.fetch.credit_ttl_s,
                default_timeout_s=settings.limits.default_timeout_s,
            )
            decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, host.server)
            admin = AdminServicer(
                role=ROLE,
                version=installed_version("disagg"),
                fingerprint=layout.fingerprint,
                begin_drain=host.begin_drain,
                end_drain=host.end_drain,
                running=lambda: host.running,
                statistics=lambda: (
                    metrics.snapshot()
                    | gauges("path", path.statistics())
                    | gauges("engine", engine.statistics())
                    | gauges("store", store.statistics())
                ),
            )
            admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, host.server)

        def announce(host: Host, stop: StopSignals, stack: AsyncExitStack) -> list[Heartbeat]:
            announcement = Announcement(
                MemberCard(
                    member_id=member_id,
                    role=membership_pb2.MEMBER_ROLE_DECODE,
                    address=host.address,
                    group_id=context.group_name,
                    rank=context.rank,
                    group_size=context.num_ranks,
                    fingerprint=layout.fingerprint,
                    model=settings.model.name or settings.model.path.resolve().name,
                    max_model_len=built.engine.context_tokens,
                    block_tokens=layout.block_tokens,
                ),
                load=engine.statistics,
                progress_age_s=engine.progress_age_s,
                is_ready=lambda: host.health.is_ready,
                is_draining=lambda: host.is_draining or stop.drain.is_set(),
            )
            heartbeats = []
            for balancer in settings.announce.balancers:
                channel = open_channel(balancer)
                stack.push_async_callback(channel.close)
                beat = beat_over(channel, announcement, on_drain=host.begin_drain)
                heartbeats.append(Heartbeat(balancer, beat, clock=clock, uniform=system_random()))
            return heartbeats

        await run_rank(
            RankPlan(
                role=ROLE,
                rank=context.rank,
                services=[SERVICE, ADMIN_SERVICE],
                work=WORK,
                listen=settings.listen,
                drain=settings.drain,
                errors=error_map(),
                metrics=metrics,
                clock=clock,
                executor=pinger,
                step_loop=engine,
                dependency="store",
                ping=store.ping,
                equip=equip,
                announce=announce,
                on_tick=path.expire_credits,
            )
        )


def _open_store(
    settings: DecodeSettings, layout: KvLayout, owner: str, rank: int, clock: Clock
) -> KvStore:
    config = KvStoreConfig(
        block_tokens=layout.block_tokens,
        owner=owner,
        owner_rank=rank,
        timeout_s=settings.store.timeout_s,
        cache_ttl_s=settings.store.cache_ttl_s,
        handoff_ttl_s=settings.store.handoff_ttl_s,
        lease_s=settings.store.lease_s,
    )
    return open_store(settings.store.url, config, fingerprint=layout.fingerprint, clock=clock.now)


def main(arguments: Sequence[str] | None = None) -> int:
    """Loads the settings, checks what can be checked at once, and runs the ranks; the exit code.

    Args:
        arguments: The command line; that of the process if absent.

    Raises:
        SystemExit: Bad settings or model (2), or a store that does not answer (3).
    """
    settings = load_process(
        DecodeSettings,
        arguments,
        prog=PROG,
        description="Ticket to tokens.",
        example=f"python -m {PROG} --model models/tiny-v4 --store redis://127.0.0.1:6379 "
        "--balancer 127.0.0.1:50051 --ranks 2",
        foreign_sections=FOREIGN_SECTIONS,
    ).value
    configure_logging(level=settings.log.level, form=settings.log.form, facts={"role": ROLE})
    with exits(PROG, STARTUP_ERRORS):
        preflight(settings)
        return run_group(
            f"{__name__}:serve_rank",
            settings.group.ranks,
            {"settings": settings.model_dump_json()},
            backend=settings.group.backend,
            group_name=settings.group.name,
            collective_timeout_s=settings.group.collective_timeout_s,
            start_timeout_s=settings.group.start_timeout_s,
            drain_timeout_s=settings.drain.max_s + 2 * LEAVE_S,
        )
