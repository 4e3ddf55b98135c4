"""Pictures: the files are there, show what they should, and bad input does not break them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pictures come with disagg[plot]")

from simulator.results.plots import draw_all, imbalance, latencies, queues
from simulator.results.samples import Look, RequestRow, Samples
from simulator.results.slo import Slo

pytestmark = pytest.mark.medium
CLASSES = ("<16K", ">=16K")


def samples(seed: int, *, has_shares: bool = True) -> Samples:
    draws = np.random.default_rng(seed)
    rows = []
    for number in range(300):
        ttft = float(draws.exponential(2.0))
        row = RequestRow(number / 10, 100, 11, 0, first_at=number / 10 + ttft)
        row.finished_at = row.first_at + 0.1
        rows.append(row)
    rows.append(RequestRow(30.0, 20_000, 5, 1, refused="late"))
    looks = [
        Look(
            at=float(at),
            waiting=(at % 7, at % 3),
            engines=(6, 2) if has_shares and at else (),
            imbalance=(1.0 + at / 10, float("nan")),
        )
        for at in range(30)
    ]
    return Samples(rows=rows, looks=looks)


def test_every_kind_of_picture_is_written(tmp_path: Path) -> None:
    found = {"deepseek": samples(0), "odd/name A": samples(1, has_shares=False)}
    paths = draw_all(tmp_path / "new" / "place", found, Slo(), CLASSES, "a trace")
    assert [path.name for path in paths] == [
        "latency.png",
        "imbalance.png",
        "queue_deepseek.png",
        "queue_odd_name_a.png",
    ]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5_000


def test_latency_lines_are_shares_of_the_offered() -> None:
    figure = latencies({"a": samples(0)}, Slo())
    all_requests, short, _ = figure.axes
    shares = all_requests.get_lines()[0].get_ydata()
    assert np.all(np.diff(shares) > 0)
    assert shares[-1] == pytest.approx(300 / 301)  # one was refused
    assert short.get_lines()[0].get_ydata()[-1] == 1.0  # and that one was long


def test_a_policy_without_classes_has_one_panel() -> None:
    assert len(queues("a", samples(0), CLASSES).axes) == 2
    assert len(queues("a", samples(0, has_shares=False), CLASSES).axes) == 1


def test_idle_moments_leave_gaps() -> None:
    figure = imbalance({"a": samples(0)})
    requests, kv = figure.axes
    assert np.isfinite(requests.get_lines()[0].get_ydata()).all()
    assert np.isnan(kv.get_lines()[0].get_ydata()).all()


def test_nobody_was_served(tmp_path: Path) -> None:
    empty = Samples(rows=[RequestRow(0.0, 10, 1, 0, refused="late")])
    empty.looks = [Look(at=0.0, waiting=(0, 0), engines=(), imbalance=(float("nan"),) * 2)]
    assert len(draw_all(tmp_path, {"a": empty}, Slo(), CLASSES, "t")) == 3
