"""Numbers, fences and text across attempts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.journey.request import FinishReason, Logprobs
from balancer.journey.transcript import StreamBroken, Transcript


class Letters:
    """Token 1 is "a", 2 is "b", ...; token 0 waits for the next one."""

    def __init__(self) -> None:
        self.held = ""

    def push(self, token_id: int) -> str:
        if token_id == 0:
            self.held += "~"
            return ""
        text, self.held = self.held + chr(96 + token_id), ""
        return text

    def finish(self) -> str:
        return self.held


def make(**fields: object) -> Transcript:
    transcript = Transcript(**{"last_seq": 0, "text": Letters(), **fields})  # type: ignore[arg-type]
    transcript.begin(1)
    return transcript


def take(transcript: Transcript, seq: int, ids: list[int], attempt: int = 1, end: bool = False):
    return transcript.take(attempt, seq, ids, (), FinishReason.LENGTH if end else None)


def test_tokens_come_out_once_and_in_order() -> None:
    transcript = make()
    delta = take(transcript, 2, [1, 2])
    assert (delta.seq, delta.token_ids, delta.text) == (2, (1, 2), "ab")
    assert take(transcript, 2, [1, 2]) is None
    delta = take(transcript, 3, [2, 3])  # overlaps: only what is new
    assert (delta.seq, delta.token_ids, delta.text) == (3, (3,), "c")
    assert transcript.num_dropped == 3
    assert transcript.token_ids == (1, 2, 3)


def test_a_gap_and_a_contradiction_break_the_attempt() -> None:
    transcript = make()
    take(transcript, 1, [1])
    with pytest.raises(StreamBroken, match="token 3 came after token 1"):
        take(transcript, 3, [3])
    with pytest.raises(StreamBroken, match="came again, and differ"):
        take(transcript, 1, [9])
    with pytest.raises(StreamBroken, match="token 0"):
        take(transcript, 0, [9])
    assert transcript.token_ids == (1,)


def test_older_attempts_are_fenced() -> None:
    transcript = make()
    take(transcript, 1, [1])
    transcript.begin(2)
    assert take(transcript, 2, [2], attempt=1) is None
    assert transcript.num_dropped == 1
    assert take(transcript, 2, [2], attempt=2).token_ids == (2,)


def test_nothing_follows_the_end() -> None:
    transcript = make()
    take(transcript, 1, [1], end=True)
    assert transcript.is_finished
    assert take(transcript, 2, [2]) is None


def test_an_end_may_come_without_a_token() -> None:
    transcript = make()
    take(transcript, 1, [1])
    assert take(transcript, 1, [], end=True) is None
    assert transcript.finish_reason is FinishReason.LENGTH


def test_a_stop_text_cuts_what_follows_it() -> None:
    transcript = make(stop=("cd",))
    delta = take(transcript, 6, [1, 2, 3, 4, 5, 6], end=True)
    assert (delta.token_ids, delta.text, delta.seq) == ((1, 2, 3, 4), "ab", 4)
    assert transcript.finish_reason is FinishReason.STOP
    assert transcript.finish() == ""


def test_a_stop_text_counts_only_after_min_tokens() -> None:
    transcript = make(stop=("b",), min_tokens=3)
    assert take(transcript, 3, [1, 2, 3]).text == "abc"
    assert not transcript.is_finished
    assert take(transcript, 4, [2]).text == ""
    assert transcript.finish_reason is FinishReason.STOP


def test_held_text_comes_with_the_end() -> None:
    transcript = make(stop=("bx",))
    assert take(transcript, 3, [1, 2, 0], end=True).text == "a"
    assert transcript.finish() == "b~"


def test_logprobs_stay_with_their_tokens() -> None:
    transcript = make(last_seq=1)
    entries = [Logprobs(logprob=-float(i)) for i in range(1, 4)]
    delta = transcript.take(1, 3, [1, 2, 3], entries, None)
    assert delta.token_ids == (2, 3)
    assert [entry.logprob for entry in delta.logprobs] == [-2.0, -3.0]


@settings(max_examples=50)
@given(
    ids=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 4), min_size=12, max_size=12),
    last_seq=st.integers(0, 12),
    stop=st.sampled_from([(), ("ab",), ("e", "cc")]),
)
def test_text_and_resumption_do_not_depend_on_the_grouping(
    ids: list[int], cuts: list[int], last_seq: int, stop: tuple[str, ...]
) -> None:
    def run(groups: list[int], skip: int) -> tuple[list[tuple[int, str]], str, tuple[int, ...]]:
        transcript = make(stop=stop, last_seq=skip)
        pieces, done = [], 0
        for size in groups:
            chunk = ids[done : done + size]
            done += len(chunk)
            if chunk and not transcript.is_finished:
                delta = take(transcript, done, chunk)
                if delta is not None:
                    pieces.append((delta.seq, delta.text))
        return pieces, transcript.finish(), transcript.token_ids

    one_by_one, tail, tokens = run([1] * len(ids), 0)
    grouped, tail_again, tokens_again = run(cuts, 0)
    assert (tail, tokens) == (tail_again, tokens_again)
    assert "".join(text for _, text in one_by_one) == "".join(text for _, text in grouped)
    resumed, tail_resumed, _ = run(cuts, last_seq)
    received = "".join(text for seq, text in one_by_one if seq <= last_seq)
    whole = "".join(text for _, text in one_by_one) + tail
    assert received + "".join(text for _, text in resumed) + tail_resumed == whole
