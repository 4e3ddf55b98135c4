"""A request on its way through the engine: known tokens, how many have KV, and its status.

Index ranges of a sequence, all half-open, in tokens:

    [0, num_computed)            have KV, on the device or in the image that waits to be imported
    [replay_start, replay_end)   run once more to rebuild windows: their entries are stored; empty
                                 but for a sequence whose image came without its state
    [num_computed, num_tokens)   without KV; at least one until the sequence is final
    [len(tokens), num_tokens)    promised: the step in flight yields it; one at most
    [0, num_given)               came with the request; their KV is what an export wants
    [num_prompt, num_tokens)     generated, here or by an earlier attempt
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.request import TRANSITIONS, EngineRequest, FinishReason, SequenceStatus

if TYPE_CHECKING:
    from engine.handoff import SequenceImage


class IllegalTransition(Exception):
    """A status change the diagram does not have: a bug of ours."""


class Sequence:
    """Mutable state of one request; changed by scheduler and engine only, on the engine thread.

    Args:
        request: what was asked.
        arrival_idx: place in the order of arrival; decides admission and preemption.
        max_kv_tokens: tokens in KV at most during its life.
        max_pages: pages for `max_kv_tokens`.
        num_stored_blocks: blocks that came with the request and need no export.
        boundaries: ends, ascending, at which a chunk must stop because the state is wanted.
    """

    __slots__ = (
        "arrival_idx",
        "boundaries",
        "image",
        "is_paused",
        "max_kv_tokens",
        "max_pages",
        "num_computed",
        "num_exported_blocks",
        "num_given",
        "num_promised",
        "num_prompt",
        "replay_end",
        "replay_start",
        "request",
        "request_id",
        "status",
        "tokens",
    )

    def __init__(
        self,
        request: EngineRequest,
        *,
        arrival_idx: int,
        max_kv_tokens: int,
        max_pages: int,
        num_stored_blocks: int = 0,
        boundaries: tuple[int, ...] = (),
    ) -> None:
        self.request_id = request.request_id
        self.arrival_idx = arrival_idx
        self.max_kv_tokens = max_kv_tokens
        self.max_pages = max_pages
        self.tokens = list(request.token_ids)
        self.num_promised = 0
        self.num_given = len(request.token_ids)
        self.num_prompt = self.num_given - request.num_generated
        # The sequence owns the image from here on: the request would keep its bytes alive for the
        # whole generation.
        self.image: SequenceImage | None = request.image
        self.request = request if request.image is None else replace(request, image=None)
        self.num_computed = 0 if self.image is None else self.image.state_tokens
        self.replay_start = self.replay_end = 0
        if self.image is not None and self.image.replay_from is not None:
            self.replay_start, self.replay_end = self.num_computed, self.image.num_tokens
        self.num_exported_blocks = num_stored_blocks
        self.boundaries = boundaries
        self.is_paused = False
        self.status = SequenceStatus.WAITING

    @property
    def num_tokens(self) -> int:
        """Tokens known or promised."""
        return len(self.tokens) + self.num_promised

    @property
    def num_generated(self) -> int:
        """Generated tokens that are known, those of earlier attempts included."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Tokens without KV."""
        return self.num_tokens - self.num_computed

    @property
    def is_replaying(self) -> bool:
        """True while the next token is one whose entries are stored."""
        return self.num_computed < self.replay_end

    @property
    def is_live(self) -> bool:
        """True until the sequence finished, failed or was aborted."""
        return bool(TRANSITIONS[self.status])

    @property
    def is_prefilling(self) -> bool:
        """True when more than the newest token lacks KV, or a prompt token does."""
        return self.num_missing > 1 or self.num_computed < self.num_prompt

    @property
    def is_ending(self) -> bool:
        """True when the promised token is the last: no token of it will ever need KV."""
        return self.num_computed >= self.max_kv_tokens

    def drop_image(self) -> None:
        """Notes that the image was imported, and lets its bytes go."""
        self.image = None

    def move_to(self, status: SequenceStatus) -> None:
        """Changes the status along an arrow of the diagram.

        Raises:
            IllegalTransition: there is no such arrow.
        """
        if status not in TRANSITIONS[self.status]:
            raise IllegalTransition(
                f"request {self.request_id!r}: {self.status.value} to {status.value}"
            )
        self.status = status

    def finish_reason_after(
        self, token_id: int, eos_token_ids: tuple[int, ...], context_tokens: int
    ) -> FinishReason | None:
        """Says why the generation ends with the token just appended, if it does.

        `banned_token_ids` keeps ends from being drawn too early, so they need no second look. A
        stop token stays in the stream: tokens are numbered, and whether its text is shown is
        decided where text is known.
        """
        sampling = self.request.sampling
        if token_id in sampling.stop_token_ids:
            return "stop"
        if token_id in eos_token_ids and not sampling.ignore_eos:
            return "stop"
        if self.num_generated >= sampling.max_tokens or self.num_tokens >= context_tokens:
            return "length"
        return None

    def banned_token_ids(self, eos_token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the tokens that may not be drawn next, while `min_tokens` is not reached."""
        sampling = self.request.sampling
        if self.num_generated >= sampling.min_tokens:
            return ()
        ends = sampling.stop_token_ids
        return ends if sampling.ignore_eos else (*ends, *eos_token_ids)
