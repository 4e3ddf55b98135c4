"""What a leader tells its followers, as bytes: one message per call, without pickle.

Integers are 64 bits, little endian; byte strings follow their length. The first byte names the
call. Messages never leave the host and both ends are of one version, so they carry no version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.handoff import SequenceImage
from engine.plan import AgreedStep, SequenceStep, StepKind, StepPlan

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class BeginStep:
    """An agreed step begins; see `on_step` of `LLMEngine`."""

    agreed: AgreedStep


@dataclass(frozen=True, slots=True)
class RunStep:
    """`Runner.run`."""

    plan: StepPlan


@dataclass(frozen=True, slots=True)
class ImportImage:
    """`Runner.import_image`."""

    image: SequenceImage
    block_table: tuple[int, ...]
    state_slot: int


@dataclass(frozen=True, slots=True)
class ResetSlot:
    """`Runner.reset_slot`."""

    state_slot: int


@dataclass(frozen=True, slots=True)
class Stop:
    """No more calls: the leader leaves its step loop."""


Call = BeginStep | RunStep | ImportImage | ResetSlot | Stop

_KINDS: Final = tuple(StepKind)
_SEQUENCE: Final = struct.Struct("<qqqq?")
_PLAN: Final = struct.Struct("<bq?")
_COUNT: Final = struct.Struct("<q")
_NO_REPLAY: Final = -1


def encode(call: Call) -> list[Buffer]:
    """A call as parts of a message, large payloads uncopied."""
    if isinstance(call, BeginStep):
        agreed = call.agreed
        return [b"B", _numbers((_KINDS.index(agreed.kind), agreed.step, *agreed.vote))]
    if isinstance(call, RunStep):
        plan = call.plan
        parts: list[Buffer] = [
            b"R",
            _PLAN.pack(_KINDS.index(plan.kind), plan.step, plan.is_placeholder),
            _numbers(plan.group_rows),
            _COUNT.pack(len(plan.sequences)),
        ]
        for step in plan.sequences:
            parts += [
                _SEQUENCE.pack(
                    step.start, step.state_slot, step.stored_tokens, step.window_start, step.sample
                ),
                *_string(step.request_id.encode()),
                _numbers(step.token_ids),
                _numbers(step.block_table),
            ]
        return parts
    if isinstance(call, ImportImage):
        image = call.image
        return [
            b"I",
            _numbers((call.state_slot, image.num_tokens, len(image.blocks), _replay(image))),
            _numbers(call.block_table),
            *(part for block in image.blocks for part in _string(block)),
            *_string(image.partial),
            *_string(image.state),
        ]
    if isinstance(call, ResetSlot):
        return [b"Z", _COUNT.pack(call.state_slot)]
    return [b"S"]


def decode(message: Buffer) -> Call:
    """The call of a message.

    Raises:
        ValueError: the message is none of ours, or cut short.
    """
    reader = _Reader(memoryview(message))
    name = bytes(reader.take(1))
    if name not in _DECODERS:
        raise ValueError(f"a plan message begins with {name!r}, which names no call")
    call = _DECODERS[name](reader)
    if reader.num_left:
        raise ValueError(f"{reader.num_left} bytes follow a {type(call).__name__} message")
    return call


class _Reader:
    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._place = 0

    @property
    def num_left(self) -> int:
        return len(self._view) - self._place

    def take(self, num_bytes: int) -> memoryview:
        if not 0 <= num_bytes <= self.num_left:
            raise ValueError(f"a plan message ends early: {num_bytes} bytes of {self.num_left}")
        self._place += num_bytes
        return self._view[self._place - num_bytes : self._place]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def count(self) -> int:
        return self.unpack(_COUNT)[0]

    def string(self) -> memoryview:
        return self.take(self.count())

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.take(8 * self.count()).cast("q"))


def _run_step(reader: _Reader) -> RunStep:
    kind, step, is_placeholder = reader.unpack(_PLAN)
    group_rows = reader.numbers()
    sequences = tuple(_sequence(reader) for _ in range(reader.count()))
    return RunStep(
        StepPlan(
            kind=_KINDS[kind],
            step=step,
            sequences=sequences,
            is_placeholder=bool(is_placeholder),
            group_rows=group_rows,
        )
    )


def _begin_step(reader: _Reader) -> BeginStep:
    kind, step, *vote = reader.numbers()
    return BeginStep(AgreedStep(kind=_KINDS[kind], step=step, vote=tuple(vote)))


def _sequence(reader: _Reader) -> SequenceStep:
    start, state_slot, stored_tokens, window_start, sample = reader.unpack(_SEQUENCE)
    return SequenceStep(
        request_id=bytes(reader.string()).decode(),
        token_ids=reader.numbers(),
        start=start,
        block_table=reader.numbers(),
        state_slot=state_slot,
        sample=bool(sample),
        stored_tokens=stored_tokens,
        window_start=window_start,
    )


def _import_image(reader: _Reader) -> ImportImage:
    state_slot, num_tokens, num_blocks, replay = reader.numbers()
    block_table = reader.numbers()
    blocks = tuple(reader.string() for _ in range(num_blocks))
    image = SequenceImage(
        num_tokens=num_tokens,
        blocks=blocks,
        partial=reader.string(),
        state=reader.string(),
        replay_from=None if replay == _NO_REPLAY else replay,
    )
    return ImportImage(image, block_table, state_slot)


_DECODERS: Final[dict[bytes, Callable[[_Reader], Call]]] = {
    b"B": _begin_step,
    b"R": _run_step,
    b"I": _import_image,
    b"Z": lambda reader: ResetSlot(reader.count()),
    b"S": lambda _: Stop(),
}


def _replay(image: SequenceImage) -> int:
    return _NO_REPLAY if image.replay_from is None else image.replay_from


def _string(data: Buffer) -> tuple[Buffer, Buffer]:
    return _COUNT.pack(len(data)), data


def _numbers(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values) + 1}q", len(values), *values)
