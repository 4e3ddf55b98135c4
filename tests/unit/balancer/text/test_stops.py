"""Stop strings, however the text is cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.text import StopStrings


@settings(max_examples=60)
@given(
    text=st.text(alphabet="abc", max_size=14),
    cuts=st.lists(st.integers(1, 3), min_size=14, max_size=14),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=3),
)
def test_stop_strings_are_found_however_the_text_is_cut(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    def run(sizes: list[int]) -> tuple[str, bool]:
        matcher, out, done = StopStrings(stops), "", 0
        for size in sizes:
            piece = text[done : done + size]
            done += len(piece)
            if piece and not matcher.is_met:
                out += matcher.push(piece)
                assert text.startswith(out)
        return out + ("" if matcher.is_met else matcher.finish()), matcher.is_met

    out, is_met = run(cuts)
    assert (out, is_met) == run([1] * len(text))
    assert is_met == any(stop in text for stop in stops)
    assert not any(stop in out for stop in stops)
    if not is_met:
        assert out == text
