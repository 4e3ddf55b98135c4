"""What surrounds every call that a process of ours serves, outermost first.

The exception mapper ends a failing call with a status of `runtime.status` and is the only place
that does. Two traps of grpc.aio decide its form: `context.abort` raises an ordinary exception,
which must pass untouched, and one that reaches gRPC sends its text to the caller as UNKNOWN.
Handlers that are async generators are driven here with an explicit close, so their `finally` runs
before the call ends, not when the garbage collector finds them.
"""

from __future__ import annotations

import contextlib
import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from runtime import status
from runtime.clock import Clock
from runtime.errors import Bug, DisaggError, ErrorMap, InvalidRequest, Reason, Unavailable
from runtime.logging import get_logger, request_scope
from runtime.metrics import Metrics

_log = get_logger(__name__)

REQUEST_ID_KEY = "x-request-id"
MAX_REQUEST_ID_CHARS = 128

# Request and response types differ per method, hence Any. Generic in the type stubs only.
if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
else:
    Context = grpc.aio.ServicerContext
    Handler = grpc.RpcMethodHandler
Behaviour = Callable[[Any, Context], Awaitable[Any]]
Around = Callable[[str, Behaviour, Any, Context], Awaitable[Any]]


def as_coroutine(behaviour: Callable[..., Any]) -> Behaviour:
    """A handler of any async form as a coroutine function that writes its own responses."""
    if not inspect.isasyncgenfunction(behaviour):
        return behaviour

    async def drive(request: Any, context: Context) -> None:
        responses: AsyncIterator[Any] = behaviour(request, context)
        async with contextlib.aclosing(responses):  # type: ignore[type-var]
            async for response in responses:
                await context.write(response)

    return drive


class Surround(grpc.aio.ServerInterceptor):
    """An interceptor that wraps the handler of every method in one coroutine, whatever its kind.

    Args:
        around: Called for each call with method name, inner handler, request (an iterator for
            client streams) and context; returns what the inner handler returns.
        only: Full method names to wrap; None wraps all.
        guards_parsing: Whether messages that cannot be parsed reach `around` as `Unreadable`;
            for the outermost interceptor. gRPC itself would end the call as UNKNOWN with the
            parser's text.
    """

    def __init__(
        self,
        around: Around,
        *,
        only: frozenset[str] | None = None,
        guards_parsing: bool = False,
    ) -> None:
        self._around = around
        self._only = only
        self._guards_parsing = guards_parsing

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """See grpc.aio.ServerInterceptor; called once per call on the event loop."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        # No handler: gRPC answers UNIMPLEMENTED by itself.
        if handler is None or (self._only is not None and method not in self._only):
            return handler
        kind = {
            (False, False): "unary_unary",
            (False, True): "unary_stream",
            (True, False): "stream_unary",
            (True, True): "stream_stream",
        }[handler.request_streaming, handler.response_streaming]
        inner = as_coroutine(getattr(handler, kind))

        async def call(request: Any, context: Context) -> Any:
            return await self._around(method, inner, request, context)

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        parse = handler.request_deserializer
        if self._guards_parsing and parse is not None and not handler.request_streaming:
            parse = _guarded(parse)
        made: Handler = make(
            call,
            request_deserializer=parse,
            response_serializer=handler.response_serializer,
        )
        return made


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a request whose bytes are no message of its type."""

    num_bytes: int


def _guarded(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except Exception:
            # Whatever a parser raises, it is about the caller's bytes. They are not repeated.
            return Unreadable(len(data))

    return read


def exception_mapper(errors: ErrorMap, metrics: Metrics) -> Surround:
    """The outermost interceptor: every exception ends the call with a status of our table.

    Also binds the request id to all log records below.
    """

    async def around(method: str, inner: Behaviour, request: Any, context: Context) -> Any:
        request_id = request_id_of(request, context)
        with request_scope(**({"request_id": request_id} if request_id else {})):
            try:
                if isinstance(request, Unreadable):
                    raise InvalidRequest(
                        f"the {request.num_bytes} bytes of the request are not a message of "
                        f"{method}: send valid protobuf of disagg.v1, with text in UTF-8"
                    )
                return await inner(request, context)
            except (grpc.aio.AbortError, grpc.aio.UsageError):
                # The handler ended the call itself. UsageError: it swallowed its own abort and
                # tried again; the first one stands.
                raise
            except Exception as error:
                known = translate(errors, error)
                if known is None or known.reason is Reason.INVARIANT_BROKEN:
                    known = incident(method, error, metrics)
            await context.abort_with_status(status.to_status(known, request_id=request_id))

    return Surround(around, guards_parsing=True)


def translate(errors: ErrorMap, error: Exception) -> DisaggError | None:
    """The error of the tree for what a handler raised, or a call it made; None if unknown."""
    if isinstance(error, grpc.aio.AioRpcError):
        return status.from_rpc_error(error)
    return errors.translate(error)


def call_timer(errors: ErrorMap, metrics: Metrics, clock: Clock) -> Surround:
    """Observes `rpc_server_call_duration_seconds` of every call; sits inside the mapper."""

    async def around(method: str, inner: Behaviour, request: Any, context: Context) -> Any:
        started = clock.now()
        code = "CANCELLED"
        try:
            result = await inner(request, context)
            code = "OK"
            return result
        except grpc.aio.AbortError:
            code = code_name(context.code())
            raise
        except Exception as error:
            known = translate(errors, error)
            code = "INTERNAL" if known is None else known.code.name
            raise
        finally:
            metrics.observe(
                "rpc_server_call_duration_seconds",
                clock.now() - started,
                rpc_method=method.lstrip("/"),
                rpc_response_status_code=code,
            )

    return Surround(around)


class WorkGate:
    """Counts the calls that are work, and refuses new ones while the process drains.

    Health, reflection and administration are not work: they answer until the end.

    Args:
        methods: Full names of those that are work.
        on_refused: Told what is refused: the full name of a method, or what `work` was given.
    """

    def __init__(
        self, methods: frozenset[str], on_refused: Callable[[str], None] = lambda _: None
    ) -> None:
        self._on_refused = on_refused
        self._is_closed = False
        self._running = 0
        self._idle: list[Callable[[], None]] = []
        self.interceptor = Surround(self._around, only=methods)

    @property
    def running(self) -> int:
        """Calls inside the gate."""
        return self._running

    @property
    def is_closed(self) -> bool:
        """Whether new work is refused."""
        return self._is_closed

    def close(self) -> None:
        """Refuse new work from now on."""
        self._is_closed = True

    def open(self) -> None:
        """Take new work again."""
        self._is_closed = False

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once no call is inside; at once if none is."""
        if self._running == 0:
            callback()
        else:
            self._idle.append(callback)

    @contextlib.contextmanager
    def work(self, what: str, method: str = "") -> Iterator[None]:
        """Count the body as work, whatever protocol it came by.

        Args:
            what: For the message of a refusal.
            method: Its full name, if that is another.

        Raises:
            Unavailable: DRAINING: no new work is taken.
        """
        if self._is_closed:
            self._on_refused(method or what)
            raise Unavailable(
                f"this process drains and takes no new {what}; ask another",
                reason=Reason.DRAINING,
                retry_after_s=0.0,
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                waiting, self._idle = self._idle, []
                for callback in waiting:
                    callback()

    async def _around(self, method: str, inner: Behaviour, request: Any, context: Context) -> Any:
        with self.work(method.rsplit("/", 1)[-1], method):
            return await inner(request, context)


def request_id_of(request: object, context: Context) -> str:
    """The request id in the message or the metadata of a call; empty if none, cut if too long."""
    named = getattr(request, "request_id", "")
    if isinstance(named, str) and named:
        return named[:MAX_REQUEST_ID_CHARS]
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID_KEY and isinstance(value, str):
            return value[:MAX_REQUEST_ID_CHARS]
    return ""


def code_name(code: grpc.StatusCode | int) -> str:
    """Name of a code as a context tells it: the enum, or its number."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((known.name for known in grpc.StatusCode if known.value[0] == code), "UNKNOWN")


def incident(method: str, error: Exception, metrics: Metrics) -> DisaggError:
    """Log an exception nobody translated and make the error that hides its text."""
    number = uuid.uuid4().hex[:12]
    _log.error("call.failed", method=method, incident=number, exc_info=error)
    metrics.count("disagg_internal_errors_total", method=method.lstrip("/"))
    return Bug(
        f"internal error; the log of this process has it as incident {number}",
        metadata={"incident": number},
    )
