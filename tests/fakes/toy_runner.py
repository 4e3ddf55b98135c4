"""A runner that speaks the real contract with a model of ten lines.

Its KV entry of a position is the token itself; its state is a running hash of all tokens. The next
token is a function of everything read back through block table and slot, so a wrong page, a stale
slot, a lost import or a chunk computed twice changes the tokens that come out. An image without
state begins its replay with the hash of the tokens before, which real windows forget.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch

from engine.handoff import SequenceImage
from engine.plan import StepKind, StepPlan, StepResult
from engine.request import SamplingParams
from engine.sampler import Sampled, SampleRow, sample

VOCAB = 64
EOS = 1
MASK = 2**64 - 1


def mix(value: int, token: int) -> int:
    """One step of a 64-bit running hash."""
    value = ((value ^ (token + 1)) * 0x9E3779B97F4A7C15) & MASK
    return value ^ (value >> 29)


def logits_of(read_back: Sequence[int], state: int) -> np.ndarray:
    """Logits after the tokens `read_back`; ties happen on purpose."""
    value = state
    for token in read_back:
        value = mix(value, int(token))
    generator = np.random.Generator(np.random.PCG64(value))
    return generator.integers(-12, 12, VOCAB).astype(np.float32) / 4


def state_after(tokens: Sequence[int]) -> int:
    """Running hash of the toy model's state slot."""
    value = 0
    for token in tokens:
        value = mix(value, int(token))
    return value


def expected_tokens(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    eos: Sequence[int] = (EOS,),
    context: int = 10**9,
) -> list[int]:
    """The generation written down once more, without engine, pages or steps."""
    tokens = list(prompt)
    out: list[int] = []
    while len(out) < sampling.max_tokens and len(tokens) < context:
        banned = ()
        if len(out) < sampling.min_tokens:
            banned = sampling.stop_token_ids + (() if sampling.ignore_eos else tuple(eos))
        row = SampleRow(
            sampling=sampling,
            token_ids=tokens,
            num_prompt=len(prompt),
            position=len(tokens),
            banned_token_ids=banned,
        )
        (sampled,) = sample(torch.from_numpy(logits_of(tokens, state_after(tokens)))[None], [row])
        assert isinstance(sampled, Sampled)
        tokens.append(sampled.token_id)
        out.append(sampled.token_id)
        stops = sampling.stop_token_ids + (() if sampling.ignore_eos else tuple(eos))
        if sampled.token_id in stops and len(out) > sampling.min_tokens:
            break
    return out


class ToyRunner:
    """Pages of token ids and slots of hashes; counts what it is asked to do."""

    def __init__(self, num_pages: int, num_slots: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.pages = np.full((num_pages, block_tokens), -7, dtype=np.int32)
        self.slots = [(-1, 0)] * num_slots
        self.plans: list[StepPlan] = []
        self.fail_run: Exception | None = None
        self.fail_import: Exception | None = None
        self.fail_export: Exception | None = None
        self.bad_rows: set[str] = set()

    def run(self, plan: StepPlan) -> StepResult:
        assert plan.kind is not StepKind.NONE
        assert plan.is_placeholder is (not plan.sequences)
        self.plans.append(plan)
        if self.fail_run is not None:
            raise self.fail_run
        rows = []
        for step in plan.sequences:
            assert step.token_ids
            assert step.state_slot > 0
            assert 0 not in step.block_table
            assert len(step.block_table) == -(-step.end // self.block_tokens)
            num_seen, state = self.slots[step.state_slot]
            if num_seen != step.start:
                state ^= 0xBAD
            for position, token in enumerate(step.token_ids, start=step.start):
                page = step.block_table[position // self.block_tokens]
                if position >= step.stored_tokens:
                    self.pages[page, position % self.block_tokens] = token
                state = mix(state, token)
            self.slots[step.state_slot] = (step.end, state)
            if step.sample:
                read_back = self.pages[list(step.block_table)].reshape(-1)[: step.end]
                row = logits_of(read_back.tolist(), state)
                if step.request_id in self.bad_rows:
                    row[3] = np.nan
                rows.append(row)
        stacked = np.stack(rows) if rows else np.zeros((0, VOCAB), dtype=np.float32)
        return StepResult(logits=torch.from_numpy(stacked))

    def export_image(
        self, block_table: Sequence[int], state_slot: int, num_tokens: int, *, blocks: bool = True
    ) -> SequenceImage:
        if self.fail_export is not None:
            raise self.fail_export
        num_full, rest = divmod(num_tokens, self.block_tokens)
        partial = self.pages[block_table[num_full], :rest].tobytes() if rest else b""
        return SequenceImage(
            num_tokens=num_tokens,
            blocks=tuple(self.export_blocks(block_table[:num_full])) if blocks else (),
            partial=partial,
            state=self.export_state(state_slot, num_tokens),
        )

    def export_blocks(self, page_ids: Sequence[int]) -> list[bytes]:
        return [self.pages[page].tobytes() for page in page_ids]

    def export_state(self, state_slot: int, num_tokens: int) -> bytes:
        num_seen, state = self.slots[state_slot]
        assert num_seen == num_tokens
        return struct.pack("<qQ", num_seen, state)

    def import_image(
        self, image: SequenceImage, block_table: Sequence[int], state_slot: int
    ) -> None:
        if self.fail_import is not None:
            raise self.fail_import
        assert len(block_table) == -(-image.num_tokens // self.block_tokens)
        for page, payload in zip(block_table, image.blocks, strict=False):
            self.pages[page] = np.frombuffer(payload, dtype=np.int32)
        if image.partial:
            rest = np.frombuffer(image.partial, dtype=np.int32)
            self.pages[block_table[len(image.blocks)], : len(rest)] = rest
        if image.state:
            self.slots[state_slot] = struct.unpack("<qQ", image.state)
        else:
            read_back = self.pages[list(block_table)].reshape(-1)[: image.state_tokens]
            self.slots[state_slot] = (image.state_tokens, state_after(read_back.tolist()))

    def reset_slot(self, state_slot: int) -> None:
        self.slots[state_slot] = (0, 0)
