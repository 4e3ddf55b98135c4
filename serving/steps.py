"""Steps of an engine as traces of their own: one in so many, with links to whom it served.

A step serves many requests at once, so it stands below none of them. Off unless the settings name
an interval; called on the engine thread, where a step that is not recorded costs a count.
"""

from collections.abc import Callable, Sequence
from contextvars import Context

from runtime.clock import Clock
from runtime.telemetry import Tracer, current
from runtime.tracing.table import MAX_STEP_LINKS

OnStep = Callable[[float, Sequence[Context]], None]


def step_spans(tracer: Tracer, interval: int, clock: Clock) -> OnStep | None:
    """What records every `interval`-th step; None if nothing is to be recorded.

    Args:
        interval: Steps, 0 for none.
        clock: Of the process.
    """
    if not (tracer.is_on and interval):
        return None
    num_steps = 0

    def observe(seconds: float, contexts: Sequence[Context]) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps % interval:
            return
        now = clock.now()
        span = tracer.root("engine.step", {"disagg.sequences": len(contexts)}, at=now - seconds)
        if span.is_recording:
            served = [context.run(current) for context in contexts]
            for request in [one for one in served if one.is_recording][:MAX_STEP_LINKS]:
                span.link(request.context, "step_of")
        span.end(at=now)

    return observe


def together(*observers: OnStep | None) -> OnStep | None:
    """Those that there are, as one; None without any."""
    present = [observer for observer in observers if observer is not None]
    if len(present) < 2:
        return present[0] if present else None

    def observe(seconds: float, contexts: Sequence[Context]) -> None:
        for observer in present:
            observer(seconds, contexts)

    return observe
