"""`python -m balancer`: the front door as a process."""

from __future__ import annotations

import asyncio
import sys

from balancer.config import BalancerSettings
from balancer.recording import RecordingError
from balancer.remote.handoffs import open_handoffs
from balancer.service import serve
from balancer.text import ModelFilesError
from kvstore.config import parse_url
from kvstore.errors import StoreUrlError
from runtime.build import software_version
from runtime.clock import SystemClock
from runtime.errors import ExitCode
from runtime.logging import configure_logging
from runtime.metrics import Metrics
from runtime.metrics.page import PageError
from runtime.sections import foreign_to
from runtime.serve import ListenError, StopSignals
from runtime.settings import SettingsError, load_process
from runtime.startup import exits, settle
from runtime.telemetry import current_trace_id
from runtime.tracing.exporting import TracingUnavailable, plan_of
from runtime.watched import SecretError

_PROG = "python -m balancer"
_STARTUP_ERRORS: dict[type[Exception], ExitCode] = {
    ModelFilesError: ExitCode.CONFIGURATION,
    ListenError: ExitCode.CONFIGURATION,
    PageError: ExitCode.CONFIGURATION,
    RecordingError: ExitCode.CONFIGURATION,
    StoreUrlError: ExitCode.CONFIGURATION,
    SecretError: ExitCode.CONFIGURATION,
    SettingsError: ExitCode.CONFIGURATION,
    TracingUnavailable: ExitCode.DEPENDENCY,
}


async def _run(settings: BalancerSettings) -> None:
    stop, clock = StopSignals(), SystemClock()
    metrics = Metrics(
        role="balancer",
        model=settings.model.name or settings.model.path.resolve().name,
        with_aliases=settings.metrics.vllm_aliases,
        trace_id=current_trace_id,
    )
    store = open_handoffs(settings.store, clock, metrics)
    try:
        settle()
        with stop.installed():
            await serve(
                settings,
                clock=clock,
                stop=stop,
                store=store,
                version=software_version(),
                metrics=metrics,
            )
    finally:
        store.close()


def _check(settings: BalancerSettings) -> None:
    """What can be told of settings alone.

    Raises:
        SettingsError: They say what no start would accept.
    """
    plan_of(settings.tracing)
    try:
        parse_url(settings.store.url)
    except StoreUrlError as error:
        raise SettingsError([str(error)]) from error


def main() -> int:
    """Returns the exit code of the process."""
    settings = load_process(
        BalancerSettings,
        prog=_PROG,
        description="Front door of the system.",
        example=f"{_PROG} --model models/tiny-v4 --store redis://127.0.0.1:6379 --port 50051",
        foreign_sections=foreign_to(BalancerSettings),
        check=_check,
    ).value
    configure_logging(level=settings.log.level, form=settings.log.form, facts={"role": "balancer"})
    with exits(_PROG, _STARTUP_ERRORS):
        asyncio.run(_run(settings))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
