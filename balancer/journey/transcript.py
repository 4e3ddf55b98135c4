"""What one request has generated so far, across all attempts: numbers, fences, text.

A token enters once. Messages of an older attempt are dropped (a decoder that was given up may still
talk), tokens with a number that is known are dropped, and a gap in the numbers is an error. What
leaves is numbered without gap or repetition, from `last_seq` + 1 on.

Text depends on the tokens alone, not on how they were grouped into messages, so a resumed stream
goes on with exactly the text that the first one had not handed out.
"""

from __future__ import annotations

from collections.abc import Sequence

from balancer.journey.request import Delta, FinishReason, Logprobs
from balancer.text import IncrementalText, StopStrings


class StreamBroken(Exception):
    """A leg's numbers do not follow from what is known; the attempt cannot go on."""


class Transcript:
    """The tokens of one request.

    Args:
        last_seq: Tokens up to this number are taken in but not handed out.
        text: Fresh decoder.
        stop: Texts that end the generation.
        min_tokens: Stop texts count only in what follows this many tokens.
    """

    def __init__(
        self, *, last_seq: int, text: IncrementalText, stop: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self._last_seq = last_seq
        self._text = text
        self._stops = StopStrings(stop)
        self._min_tokens = min_tokens
        self._token_ids: list[int] = []
        self._attempt = 0
        self.num_dropped = 0
        self.finish_reason: FinishReason | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens generated so far."""
        return tuple(self._token_ids)

    @property
    def seq(self) -> int:
        """Number of the last token; 0 before the first."""
        return len(self._token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether the generation has ended."""
        return self.finish_reason is not None

    def begin(self, attempt: int) -> None:
        """From now on only this attempt's tokens count."""
        self._attempt = attempt

    def take(
        self,
        attempt: int,
        seq: int,
        token_ids: Sequence[int],
        logprobs: Sequence[Logprobs],
        finish_reason: FinishReason | None,
    ) -> Delta | None:
        """Takes tokens of which the last is numbered `seq`; returns what is new for the caller.

        Sets `finish_reason` when the generation has ended, by the leg's word or by a stop text; a
        stop text cuts the tokens after the one that completed it.

        Raises:
            StreamBroken: A number is missing, or a known number came with another token.
        """
        if attempt != self._attempt or self.finish_reason is not None:
            self.num_dropped += len(token_ids)
            return None
        first = seq - len(token_ids) + 1
        known = self._check_numbers(first, token_ids)
        fresh = token_ids[known:]
        new_ids: list[int] = []
        pieces: list[str] = []
        for token_id in fresh:
            piece = self._push(token_id)
            if self.seq > self._last_seq:
                new_ids.append(token_id)
                pieces.append(piece)
            if self._stops.is_met:
                self.finish_reason = FinishReason.STOP
                break
        else:
            self.finish_reason = finish_reason
        if not new_ids:
            return None
        offset = self.seq - len(new_ids) - first + 1
        return Delta(
            attempt=attempt,
            seq=self.seq,
            token_ids=tuple(new_ids),
            text="".join(pieces),
            pieces=tuple(pieces),
            logprobs=tuple(logprobs[offset : offset + len(new_ids)]),
        )

    def finish(self) -> str:
        """Text that was held back; empty if a stop text ended the answer."""
        if self._stops.is_met:
            return ""
        tail = self._text.finish()
        if tail:
            tail = self._stops.push(tail)
        return tail + self._stops.finish()

    def _check_numbers(self, first: int, token_ids: Sequence[int]) -> int:
        """How many of the tokens are known already."""
        if first > self.seq + 1 or first < 1:
            raise StreamBroken(f"token {first} came after token {self.seq}")
        known = min(self.seq - first + 1, len(token_ids))
        if list(token_ids[:known]) != self._token_ids[first - 1 : first - 1 + known]:
            raise StreamBroken(f"tokens {first} to {first + known - 1} came again, and differ")
        self.num_dropped += known
        return known

    def _push(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        piece = self._text.push(token_id)
        return self._stops.push(piece) if self.seq > self._min_tokens else piece
