"""Wire messages to plain values and back, for messages that more than one service speaks.

Wire messages stop at the faces of a service; libraries take plain values. What several faces would
translate alike is translated here. Knows protobuf and nothing of ours beyond `disagg.v1`: other
parts' types enter as protocols, leave as keyword arguments.
"""

import re
from collections.abc import Sequence
from typing import Protocol, TypedDict

from google.protobuf import duration_pb2

from disagg.v1 import common_pb2, membership_pb2

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
"""Form of a request id, which is also the key of its idempotency."""


class TicketFields(TypedDict):
    """Keyword arguments of a ticket; the names are those of `disagg.v1.KvTicket`."""

    handoff_id: str
    request_id: str
    attempt: int
    fingerprint: bytes
    num_tokens: int
    num_blocks: int
    last_block_hash: bytes
    tail_key: str
    tail_digest: bytes
    body_digest: bytes
    first_token: int
    fencing_token: int
    remaining_s: float
    traceparent: str


class TicketLike(Protocol):
    """Anything with the fields of a ticket as attributes."""

    @property
    def handoff_id(self) -> str: ...
    @property
    def request_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def last_block_hash(self) -> bytes: ...
    @property
    def tail_key(self) -> str: ...
    @property
    def tail_digest(self) -> bytes: ...
    @property
    def body_digest(self) -> bytes: ...
    @property
    def first_token(self) -> int: ...
    @property
    def fencing_token(self) -> int: ...
    @property
    def remaining_s(self) -> float: ...
    @property
    def traceparent(self) -> str: ...


class SamplingFields(TypedDict, total=False):
    """Keyword arguments of sampling parameters; a missing key means the default of the server."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float


class LoadLike(Protocol):
    """Anything with the fields of an engine's statistics that placement asks for."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def kv_capacity_tokens(self) -> int: ...
    @property
    def max_running(self) -> int: ...
    @property
    def queued_tokens(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def placeholder_steps(self) -> int: ...


def request_id_problem(request_id: str) -> str | None:
    """What is wrong with a request id and how to mend it; None if nothing is."""
    if REQUEST_ID.fullmatch(request_id):
        return None
    shown = request_id if len(request_id) <= 40 else request_id[:40] + "..."
    return f"request_id is {shown!r}: give 1 to 128 characters of A-Z a-z 0-9 . _ : -"


def ticket_fields(message: common_pb2.KvTicket) -> TicketFields:
    """The fields of a ticket; nothing is checked."""
    return TicketFields(
        handoff_id=message.handoff_id,
        request_id=message.request_id,
        attempt=message.attempt,
        fingerprint=message.fingerprint,
        num_tokens=message.num_tokens,
        num_blocks=message.num_blocks,
        last_block_hash=message.last_block_hash,
        tail_key=message.tail_key,
        tail_digest=message.tail_digest,
        body_digest=message.body_digest,
        first_token=message.first_token,
        fencing_token=message.fencing_token,
        remaining_s=seconds(message.remaining),
        traceparent=message.traceparent,
    )


def ticket_message(ticket: TicketLike) -> common_pb2.KvTicket:
    """The message of a ticket."""
    return common_pb2.KvTicket(
        handoff_id=ticket.handoff_id,
        request_id=ticket.request_id,
        attempt=ticket.attempt,
        fingerprint=ticket.fingerprint,
        num_tokens=ticket.num_tokens,
        num_blocks=ticket.num_blocks,
        last_block_hash=ticket.last_block_hash,
        tail_key=ticket.tail_key,
        tail_digest=ticket.tail_digest,
        body_digest=ticket.body_digest,
        first_token=ticket.first_token,
        fencing_token=ticket.fencing_token,
        remaining=duration(ticket.remaining_s),
        traceparent=ticket.traceparent,
    )


def sampling_fields(message: common_pb2.SamplingParams) -> SamplingFields:
    """The fields that are present, without `n` and `stop`, which belong to the front door."""
    fields = SamplingFields(
        stop_token_ids=tuple(message.stop_token_ids), ignore_eos=message.ignore_eos
    )
    if message.HasField("temperature"):
        fields["temperature"] = message.temperature
    if message.HasField("top_k"):
        fields["top_k"] = message.top_k
    if message.HasField("top_p"):
        fields["top_p"] = message.top_p
    if message.HasField("min_p"):
        fields["min_p"] = message.min_p
    if message.HasField("seed"):
        fields["seed"] = message.seed
    if message.HasField("max_tokens"):
        fields["max_tokens"] = message.max_tokens
    if message.HasField("min_tokens"):
        fields["min_tokens"] = message.min_tokens
    if message.HasField("logprobs"):
        fields["logprobs"] = message.logprobs
    if message.HasField("presence_penalty"):
        fields["presence_penalty"] = message.presence_penalty
    if message.HasField("frequency_penalty"):
        fields["frequency_penalty"] = message.frequency_penalty
    if message.HasField("repetition_penalty"):
        fields["repetition_penalty"] = message.repetition_penalty
    return fields


FINISH_REASONS = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
    "abort": common_pb2.FINISH_REASON_ABORT,
}
"""Wire value of each reason for which an engine ends a generation."""


def finish_reason(name: str | None) -> common_pb2.FinishReason:
    """Wire value of an engine's finish reason; UNSPECIFIED while the generation goes on.

    Raises:
        KeyError: The engine made up a new reason.
    """
    return common_pb2.FINISH_REASON_UNSPECIFIED if name is None else FINISH_REASONS[name]


def position_logprobs(
    logprob: float, top: Sequence[tuple[int, float]]
) -> common_pb2.PositionLogprobs:
    """Log-probabilities at one position: of the chosen token, and (token id, value), best first."""
    return common_pb2.PositionLogprobs(
        logprob=logprob,
        top=[common_pb2.TokenLogprob(token_id=token_id, logprob=value) for token_id, value in top],
    )


def load_snapshot(load: LoadLike, *, last_progress_ms: int) -> membership_pb2.LoadSnapshot:
    """Load of one rank as it travels in a heartbeat."""
    return membership_pb2.LoadSnapshot(
        running=load.running,
        waiting=load.waiting,
        kv_tokens=load.kv_tokens,
        kv_capacity_tokens=load.kv_capacity_tokens,
        max_running=load.max_running,
        queued_tokens=load.queued_tokens,
        steps=load.steps,
        placeholder_steps=load.placeholder_steps,
        last_progress_ms=last_progress_ms,
    )


def seconds(message: duration_pb2.Duration) -> float:
    """Seconds of a duration."""
    return message.seconds + message.nanos / 1e9


def duration(value_s: float) -> duration_pb2.Duration:
    """The message of a duration of at least 0 seconds, rounded down to microseconds."""
    micros = max(0, int(value_s * 1e6))
    return duration_pb2.Duration(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)
