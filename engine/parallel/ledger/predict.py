"""Which collectives a step of a layout makes, and how many bytes they move. Pure arithmetic.

A line counts one operation on one channel. Bytes are those one rank sends in a step: a ring for
reductions and gathers, for dispatch and combine (combine: that come back) a row to each of its
target ranks in the worst case, its own among them: min(top_k, ep). This engine's own transports
copy a row once for each choice instead, also when two choices are on one rank, and record that.
Dense all-reduces appear only with attention TP.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.parallel.layout import Layout
from engine.parallel.rows.modes import Combine, PaddingMode, Path, RowGather, choose_gather

_ID_BYTES: Final = 8


class Medium(enum.Enum):
    """What a line occupies."""

    DEVICE = "device"
    KERNEL = "in-kernel"
    HOST = "host"
    ONE_SIDED = "one-sided"


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """Bytes of a row on the wire.

    Args:
        name: for humans.
        value_bytes: of one number of a dispatched row; `result_bytes` of a combined one, and of
            rows that ranks gather or sum.
        scale_group: numbers that share a float32 scale; None for no scales.
        extra_bytes: beside the numbers, per dispatched row.
        is_per_choice: a row travels once per choice, not once per rank that holds some of them.
    """

    name: str
    value_bytes: int
    result_bytes: int
    scale_group: int | None = None
    extra_bytes: int = 0
    is_per_choice: bool = False

    def targets(self, top_k: int, ep: int) -> int:
        """How often a row with `top_k` choices over `ep` ranks travels, at worst."""
        return top_k if self.is_per_choice else min(top_k, ep)

    def dispatch_bytes(self, hidden: int) -> int:
        """Of one row to one target."""
        scales = 4 * (hidden // self.scale_group) if self.scale_group else 0
        return hidden * self.value_bytes + scales + self.extra_bytes

    def combine_bytes(self, hidden: int) -> int:
        """Of one row from one target; also of a row that is gathered or summed."""
        return hidden * self.result_bytes


FP8_WIRE = WireFormat(name="fp8 rows, bf16 results", value_bytes=1, result_bytes=2, scale_group=128)
BF16_WIRE = WireFormat(name="bf16", value_bytes=2, result_bytes=2)
# What this engine sends on CPUs: a row for each choice, with its weight and slot.
FLOAT32_WIRE = WireFormat(
    name="float32", value_bytes=4, result_bytes=4, extra_bytes=8, is_per_choice=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """What decides the collectives of a model's step.

    Args:
        hidden, top_k: width of a row, choices per row.
        num_layers, num_moe_layers: attention layers, and those with routed experts.
        num_fetches, fetch_bytes: row tables read per step, and bytes of their rows per token.
        window_row_bytes: window row of an attention layer at two bytes a number; 0 without windows.
        source_row_bytes: for each layer that pools KV, its projected row.
        num_draft_stages: draft layers that gather context rows.
    """

    hidden: int
    top_k: int
    num_layers: int
    num_moe_layers: int
    num_fetches: int = 0
    fetch_bytes: int = 0
    window_row_bytes: int = 0
    source_row_bytes: tuple[int, ...] = ()
    num_draft_stages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What kind of step, and how rows reach the experts.

    Args:
        tokens: rows of one attention group in this step.
        is_prefill: context ranks share the rows of prefill steps; of decode steps each has all
            rows, and they are cut as on path B.
        path: of the rows to the experts.
        cuts_rows: path B cuts replicated rows; without, each is dispatched attn_tp times.
        is_fused: dispatch, experts and combine are one kernel.
        is_compact: prefill keeps only the last rows after the encoder half.
        padding, combine: of path A.
        group_rows: of path A, rows of each attention group; None is `tokens` of each.
        rank_rows: rows a context rank has of a step that is cut, with padding; None is equal parts.
        exit_rows: of these, the rows whose results all ranks get; None is all.
        wire: formats of rows.
    """

    tokens: int
    is_prefill: bool = False
    path: Path = Path.DIRECT
    cuts_rows: bool = True
    is_fused: bool = False
    is_compact: bool = False
    padding: PaddingMode = PaddingMode.SUM
    combine: Combine = Combine.REDUCE_SCATTER
    group_rows: tuple[int, ...] | None = None
    rank_rows: int | None = None
    exit_rows: int | None = None
    wire: WireFormat = FP8_WIRE


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One operation of a step.

    Args:
        channel, operation: as recorded at run time.
        count: times per step.
        num_bytes: that one rank moves in a step, over all of them.
        medium: what it occupies.
        is_per_layer: it grows with the layers, and counts as a collective of the step.
    """

    channel: str
    operation: str
    count: int
    num_bytes: int
    medium: Medium = Medium.DEVICE
    is_per_layer: bool = True


def predict_step(layout: Layout, model: StepModel, shape: StepShape) -> tuple[Line, ...]:
    """Lines of one step, in the order of a layer; operations that do not happen have no line."""
    lines = [
        *_agreement(layout, shape),
        *_fetches(layout, model, shape),
        *_context(layout, model, shape),
        *_attention(layout, model, shape),
        *_experts(layout, model, shape),
    ]
    return tuple(line for line in lines if line.count)


def as_recorded(
    lines: tuple[Line, ...], layout: Layout, shape: StepShape
) -> dict[tuple[str, str], tuple[int, int]]:
    """What a step asks the transports for: (count, bytes) by (channel, collective).

    Gathers with a name of their own are what carries them; ids travel as rows of path A do.
    """
    ids = _row_gather(layout, shape, _ID_BYTES)
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for line in lines:
        is_gather = line.operation.endswith("_gather") and line.operation != "sized_gather"
        operation = "all_gather" if is_gather else line.operation
        carried = [(line.channel, operation, line.num_bytes)]
        if line.operation == "id_gather":
            carried = ids
        for channel, operation, num_bytes in carried:
            count, before = found.get((channel, operation), (0, 0))
            found[channel, operation] = (count + line.count, before + num_bytes)
    return found


def num_device_collectives(lines: tuple[Line, ...], *, with_kernels: bool = False) -> int:
    """Device collectives of a step that grow with the layers.

    Args:
        lines: of `predict_step`.
        with_kernels: count kernels that exchange rows inside themselves.
    """
    media = {Medium.DEVICE, Medium.KERNEL} if with_kernels else {Medium.DEVICE}
    return sum(line.count for line in lines if line.medium in media and line.is_per_layer)


def _agreement(layout: Layout, shape: StepShape) -> Iterator[Line]:
    if layout.replica_size > 1:
        # Nine fields of 8 bytes. Path A takes the rows of each group out of them.
        yield Line(
            channel="vote",
            operation="all_gather" if shape.path is Path.A else "all_reduce",
            count=1,
            num_bytes=72,
            medium=Medium.HOST,
            is_per_layer=False,
        )


def _fetches(layout: Layout, model: StepModel, shape: StepShape) -> Iterator[Line]:
    if layout.enp > 1:
        rows = _rows_per_rank(layout, shape)
        yield Line(
            channel="table",
            operation="fetch",
            count=model.num_fetches,
            num_bytes=model.num_fetches * rows * model.fetch_bytes,
            medium=Medium.ONE_SIDED,
        )


def _context(layout: Layout, model: StepModel, shape: StepShape) -> Iterator[Line]:
    if layout.cp == 1 or not shape.is_prefill:
        return
    rows = _rows_per_rank(layout, shape) * (layout.cp - 1)
    window = model.window_row_bytes // 2 * shape.wire.result_bytes
    widths = {
        "window_gather": [window] * (model.num_layers + model.num_draft_stages),
        "source_gather": list(model.source_row_bytes),
        "exit_gather": [shape.wire.combine_bytes(model.hidden)],
    }
    leaving = rows if shape.exit_rows is None else shape.exit_rows * (layout.cp - 1)
    for operation, found in widths.items():
        gathered = [width for width in found if width]
        travelling = leaving if operation == "exit_gather" else rows
        yield Line(
            channel="sequence",
            operation=operation,
            count=len(gathered),
            num_bytes=travelling * sum(gathered),
        )
    if shape.is_compact:
        # Hidden, residual of four streams, three mix tensors and the selection, once.
        width = 2 * model.hidden * 5
        yield Line(channel="sequence", operation="boundary_gather", count=6, num_bytes=rows * width)


def _attention(layout: Layout, model: StepModel, shape: StepShape) -> Iterator[Line]:
    width = layout.attn_tp
    if width > 1:
        # Dense layers share their inner width over the same ranks: one more reduction each.
        count = model.num_layers + model.num_layers - model.num_moe_layers
        yield Line(
            channel="attention",
            operation="all_reduce",
            count=count,
            num_bytes=count
            * _ring_reduce(width, shape.tokens * shape.wire.combine_bytes(model.hidden)),
        )


def _experts(layout: Layout, model: StepModel, shape: StepShape) -> Iterator[Line]:
    layers, width = model.num_moe_layers, layout.attn_tp
    row_bytes = shape.wire.combine_bytes(model.hidden)
    if shape.path is Path.A:
        yield from _path_a(layout, model, shape)
        return
    if shape.path is Path.PLAIN:
        traffic = _ring_reduce(layout.replica_size, shape.tokens * row_bytes)
        count = layers if layout.replica_size > 1 else 0
        yield Line(channel="domain", operation="all_reduce", count=count, num_bytes=count * traffic)
        return
    # Ranks that hold the same rows cut them, so that each is dispatched once.
    inner, channel = 1, "attention"
    if shape.path is Path.B and shape.cuts_rows:
        inner = width
    elif layout.cp > 1 and not shape.is_prefill:
        inner, channel = layout.cp, "sequence"
    rows = _rows_per_rank(layout, shape, inner=inner)
    yield from _dispatches(layout, model, shape, rows)
    if inner > 1:
        chunk = rows * row_bytes * (inner - 1)
        yield Line(channel=channel, operation="all_gather", count=layers, num_bytes=layers * chunk)


def _dispatches(layout: Layout, model: StepModel, shape: StepShape, rows: int) -> Iterator[Line]:
    """Of `rows` rows to the ranks that hold the experts, and back."""
    if layout.ep == 1:
        return
    layers, hidden = model.num_moe_layers, model.hidden
    targets = rows * shape.wire.targets(model.top_k, layout.ep)
    sent = layers * targets * shape.wire.dispatch_bytes(hidden)
    returned = layers * targets * shape.wire.combine_bytes(hidden)
    if shape.is_fused:
        yield Line(
            channel="experts",
            operation="fused",
            count=layers,
            num_bytes=sent + returned,
            medium=Medium.KERNEL,
        )
    else:
        yield Line(channel="experts", operation="dispatch", count=layers, num_bytes=sent)
        yield Line(channel="experts", operation="combine", count=layers, num_bytes=returned)


def _path_a(layout: Layout, model: StepModel, shape: StepShape) -> Iterator[Line]:
    """Row gather and combine over all attention groups."""
    layers, row = model.num_moe_layers, shape.wire.combine_bytes(model.hidden)
    ids = _row_gather(layout, shape, _ID_BYTES)
    yield Line(
        channel="domain",
        operation="id_gather",
        count=1,
        num_bytes=sum(num_bytes for _, _, num_bytes in ids),
        is_per_layer=False,
    )
    for channel, operation, traffic in (
        *_row_gather(layout, shape, row),
        *_row_combine(layout, shape, row),
    ):
        yield Line(channel=channel, operation=operation, count=layers, num_bytes=layers * traffic)


def _row_gather(layout: Layout, shape: StepShape, row_bytes: int) -> list[tuple[str, str, int]]:
    """Collectives of one gather of rows to all ranks: (channel, operation, bytes)."""
    one_way = ring_bytes(layout.replica_size, sum(_group_slots(layout, shape)) * row_bytes)
    match choose_gather(shape.padding, attn_tp=layout.attn_tp):
        case RowGather.SUMMED:
            return [("domain", "all_reduce", 2 * one_way)]
        case RowGather.SIZED:
            return [("domain", "sized_gather", one_way)]
        case RowGather.PADDED if layout.attn_tp == 1:
            return [("domain", "all_gather", one_way)]
        case RowGather.PADDED:
            inner = ring_bytes(layout.attn_tp, _group_slots(layout, shape)[0] * row_bytes)
            return [("attention", "reduce_scatter", inner), ("domain", "all_gather", one_way)]


def _row_combine(layout: Layout, shape: StepShape, row_bytes: int) -> list[tuple[str, str, int]]:
    """Collectives that take the sum over all ranks back to the groups."""
    slots, width = _group_slots(layout, shape), layout.attn_tp
    one_way = ring_bytes(layout.replica_size, sum(slots) * row_bytes)
    if shape.combine is Combine.ALL_REDUCE:
        return [("domain", "all_reduce", 2 * one_way)]
    found = [("domain", "reduce_scatter", one_way)]
    if width > 1:
        # Slices of the own group, padded to the longest.
        mine = slots[0] if shape.padding is PaddingMode.MAX else shape.tokens
        chunk = -(-mine // width)
        found.append(("attention", "all_gather", ring_bytes(width, width * chunk * row_bytes)))
    return found


def _group_slots(layout: Layout, shape: StepShape) -> tuple[int, ...]:
    """Rows each attention group takes in the gathered ones, padding included."""
    rows = shape.group_rows or (shape.tokens,) * layout.dp
    if shape.padding is PaddingMode.SUM:
        return rows
    return (-(-max(rows) // layout.attn_tp) * layout.attn_tp,) * len(rows)


def _rows_per_rank(layout: Layout, shape: StepShape, *, inner: int = 1) -> int:
    """Rows of a group that one of its ranks handles, padded to equal parts.

    Args:
        inner: ranks over which equal rows are cut.
    """
    is_cut = shape.is_prefill and layout.cp > 1
    if is_cut and shape.rank_rows is not None:
        return shape.rank_rows
    parts = (layout.cp if is_cut else 1) * inner
    return -(-shape.tokens // parts)


def _ring_reduce(size: int, num_bytes: int) -> int:
    return 2 * ring_bytes(size, num_bytes)


def ring_bytes(size: int, num_bytes: int) -> int:
    """Bytes each of `size` ranks sends so that all hold `num_bytes`; also of a reduce-scatter."""
    return (size - 1) * num_bytes // size
