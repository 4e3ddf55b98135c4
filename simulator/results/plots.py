"""Pictures of runs: latencies, queues and engine shares over time, imbalance of decode.

matplotlib comes with `disagg[plot]` and is imported here alone, when something is drawn. Figures
are made without its global state, so nothing is left behind and any number can be drawn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from simulator.results.samples import RequestRow, Samples
from simulator.results.slo import Slo

# Colours that stay apart for colour-blind readers; policies in order, the first is the default.
_POLICY_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#6B4C9A",
    "#8C564B",
    "#7F7F7F",
    "#BCBD22",
    "#000000",
    "#17BECF",
    "#AA3377",
    "#999933",
)
_CLASS_COLOURS = ("#9ecae1", "#4292c6", "#2171b5", "#08306b", "#6a51a3", "#3f007d")
_SHORT_TOKENS = 16 * 1024
_DPI = 130
_GRID = {"color": "#dddddd", "linewidth": 0.6}
_MOST_POINTS = 2000


def draw_all(
    directory: Path,
    samples: Mapping[str, Samples],
    slo: Slo,
    class_names: Sequence[str],
    title: str,
) -> list[Path]:
    """Draws everything into a directory, which is made if it is not there; returns the files.

    Args:
        samples: By policy.
        class_names: Of the length classes.
        title: Stands above every picture: the trace.
    """
    directory.mkdir(parents=True, exist_ok=True)
    figures = {"latency": latencies(samples, slo), "imbalance": imbalance(samples)}
    for name, found in samples.items():
        safe = re.sub(r"[^a-z0-9_]+", "_", name.lower())
        figures[f"queue_{safe}"] = queues(name, found, class_names)
    paths = []
    for name, figure in figures.items():
        figure.suptitle(f"{figure.get_suptitle()} · {title}", fontsize=11, x=0.01, ha="left")
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=_DPI)
        paths.append(path)
    return paths


def latencies(samples: Mapping[str, Samples], slo: Slo) -> Figure:
    """Cumulative shares of requests by TTFT (all, and prompts under 16K) and by TPOT."""
    figure = Figure(figsize=(12.5, 4.4), layout="constrained")
    figure.suptitle("Latency: share of requests that are at least as fast")
    panels = figure.subplots(1, 3, sharey=True)
    kinds: list[tuple[str, Any, float]] = [
        ("time to first token", lambda row: row.ttft_s, slo.ttft_s),
        ("time to first token, prompts under 16K", lambda row: row.ttft_s, slo.ttft_s),
        ("time per output token", lambda row: row.tpot_s, slo.tpot_s),
    ]
    for panel, (label, value, target) in zip(panels, kinds, strict=True):
        for number, (name, found) in enumerate(samples.items()):
            rows = [row for row in found.rows if _is_counted(row, label)]
            _cdf(panel, [value(row) for row in rows], name, number)
        panel.axvline(target, color="#444444", linewidth=0.9, linestyle=(0, (4, 3)))
        panel.annotate(
            "target" if label.startswith("time per") else "target, empty prompt",
            (target, 0.02),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            color="#444444",
        )
        if "output" in label:  # less than a decade wide
            panel.set_xlim(0, max(1.25 * target, 1.02 * panel.dataLim.x1))
        else:
            panel.set_xscale("log")
            panel.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        panel.set_xlabel(label, fontsize=9)
        panel.xaxis.set_major_formatter(FuncFormatter(_seconds))
        _plain(panel)
    panels[0].set_ylim(0, 1.01)
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(7, len(samples)),
        frameon=False,
        fontsize=9,
    )
    return figure


def queues(name: str, samples: Samples, class_names: Sequence[str]) -> Figure:
    """Requests without a first token, and prefill engines, by length class over time."""
    looks = samples.looks
    minutes = np.array([look.at for look in looks]) / 60
    has_shares = any(look.engines for look in looks)
    figure = Figure(figsize=(10, 5.6 if has_shares else 3.6), layout="constrained")
    figure.suptitle(f"{name}: requests waiting for a first token" + (", engines" * has_shares))
    panels = figure.subplots(2 if has_shares else 1, 1, sharex=True, squeeze=False)[:, 0]
    waiting = np.array([look.waiting for look in looks], dtype=float).T
    panels[0].stackplot(
        minutes, waiting, labels=class_names, colors=_CLASS_COLOURS, linewidth=0, step="post"
    )
    panels[0].set_ylabel("requests waiting", fontsize=9)
    panels[0].set_ylim(0, max(1.0, 1.05 * float(waiting.sum(axis=0).max(initial=0))))
    if has_shares:
        blank = (0,) * len(class_names)
        engines = np.array([look.engines or blank for look in looks], dtype=float).T
        panels[1].stackplot(
            minutes, engines, labels=class_names, colors=_CLASS_COLOURS, linewidth=0, step="post"
        )
        panels[1].set_ylabel("prefill engines", fontsize=9)
        panels[1].set_ylim(0, float(engines.sum(axis=0).max(initial=1)))
    for panel in panels:
        panel.set_xlim(0, float(minutes.max(initial=1e-3)))
        _plain(panel)
    panels[-1].set_xlabel("minutes", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles[::-1],
        labels[::-1],
        title="prompt length",
        loc="outside right upper",
        frameon=False,
        fontsize=9,
        title_fontsize=9,
    )
    return figure


def imbalance(samples: Mapping[str, Samples]) -> Figure:
    """max/mean over decode ranks of requests and of KV tokens over time."""
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    figure.suptitle("Decode ranks: the fullest over the mean (1 is even)")
    panels = figure.subplots(2, 1, sharex=True)
    for axis, (panel, label) in enumerate(zip(panels, ("requests", "KV tokens"), strict=True)):
        for number, (name, found) in enumerate(samples.items()):
            looks = [look for look in found.looks if look.at <= found.rows[-1].arrived_at]
            at = np.array([look.at for look in looks]) / 60
            values = _smooth(np.array([look.imbalance[axis] for look in looks]))
            panel.plot(
                at, values, label=name, color=_colour(number), linewidth=1.6 if not number else 1.1
            )
        panel.set_ylabel(label, fontsize=9)
        # One request alone is as uneven as can be; the first moments must not set the scale.
        drawn = np.concatenate([line.get_ydata() for line in panel.get_lines()] or [np.ones(1)])
        known = drawn[~np.isnan(drawn)]
        panel.set_ylim(1.0, 1.3 * float(np.quantile(known, 0.95)) + 0.5 if len(known) else 2.0)
        panel.set_xlim(left=0)
        _plain(panel)
    panels[1].set_xlabel("minutes (running mean)", fontsize=9)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(7, len(samples)),
        frameon=False,
        fontsize=9,
    )
    return figure


def _is_counted(row: RequestRow, label: str) -> bool:
    """Whether a request belongs to a panel."""
    if "under 16K" in label:
        return row.prompt_tokens < _SHORT_TOKENS
    return row.output_tokens > 1 or "output" not in label


def _cdf(panel: Axes, values: Sequence[float], name: str, number: int) -> None:
    """One line; requests that never got there hold it below 100 %."""
    data = np.array(values, dtype=float)
    offered = len(data)
    data = np.sort(data[~np.isnan(data)])
    if not len(data):
        return
    shares = np.arange(1, len(data) + 1) / offered
    kept = np.unique(np.linspace(0, len(data) - 1, _MOST_POINTS).astype(int))
    panel.plot(
        np.maximum(data[kept], 1e-4),
        shares[kept],
        label=name,
        color=_colour(number),
        linewidth=2.0 if not number else 1.2,
        zorder=3 if not number else 2,
    )


def _smooth(values: np.ndarray, width: int = 15) -> np.ndarray:
    """Running mean that leaves moments without any request out."""
    known = ~np.isnan(values)
    kernel = np.ones(min(width, max(1, len(values))))
    sums = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    counts = np.convolve(known.astype(float), kernel, mode="same")
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _plain(panel: Axes) -> None:
    panel.grid(visible=True, which="major", **_GRID)  # type: ignore[arg-type]
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8, length=3)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _colour(number: int) -> str:
    return _POLICY_COLOURS[number % len(_POLICY_COLOURS)]


def _seconds(value: float, _place: object) -> str:
    if value < 1e-9:
        return "0"
    if value < 1e-3:
        return f"{value * 1e6:g} us"
    return f"{value * 1e3:g} ms" if value < 1 else f"{value:g} s"
