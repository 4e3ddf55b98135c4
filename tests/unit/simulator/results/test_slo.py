"""Latency targets: form, defaults, what counts as good."""

from __future__ import annotations

import pytest

from simulator.results.slo import Slo, parse_slo

NAN = float("nan")


def test_the_default_grows_with_the_prompt() -> None:
    slo = Slo()
    assert slo.ttft_target_s(0) == 2.0
    assert slo.ttft_target_s(32 * 1024) == 4.0
    assert str(slo) == "ttft=2s+1s/16k,tpot=50ms"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft=2s,tpot=50ms", Slo(ttft_per_token_s=0.0)),
        ("ttft=2s+1s/16k,tpot=50ms", Slo()),
        ("tpot=30ms", Slo(tpot_s=0.03)),
        ("ttft=500ms", Slo(ttft_s=0.5, ttft_per_token_s=0.0)),
    ],
)
def test_forms(text: str, expected: Slo) -> None:
    assert parse_slo(text) == expected


@pytest.mark.parametrize("text", ["ttft=2", "ttft=2s;tpot=1s", "itl=5ms", "ttft=0s", "tpot=-1ms"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write like ttft=2s"):
        parse_slo(text)


def test_both_targets_must_be_met() -> None:
    slo = Slo()
    assert slo.is_met(100, 2.0, 0.05)
    assert not slo.is_met(100, 2.1, 0.01)
    assert not slo.is_met(100, 0.1, 0.051)
    assert slo.is_met(100, 0.1, NAN)
    assert not slo.is_met(100, NAN, NAN)
