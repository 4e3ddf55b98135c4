"""The reference of all settings follows from their classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from charts.settings_page import ROOT, _row, page
from cli.config import ROLES, settings_class
from runtime.settings import Settings, leaves, setting


class Section(Settings):
    """A section."""

    mode: Literal["a", "b"] = setting("a", help="how; a | b", flag="--mode")
    sizes: tuple[int, ...] = setting((), help="sizes")
    limit: float | None = setting(None, help="limit", gt=0, le=1)
    shares: dict[str, float] = setting({}, help="shares")
    is_on: bool = setting(True, help="on")
    path: Path = setting(help="where")


class Tree(Settings):
    """A tree."""

    part: Section


def test_every_setting_is_there_once_in_its_role_or_for_all() -> None:
    text = page()
    for role in ROLES:
        for leaf in leaves(settings_class(role)):
            assert f"| `{leaf.key}` | `{leaf.flag}` |" in text
    head, *_ = text.split("## balancer")
    assert "`store.url`" in head and "`admission.max_running`" not in head


def test_a_row_says_kind_bounds_and_default() -> None:
    rows = {leaf.path[-1]: _row(leaf)[1:] for leaf in leaves(Tree)}
    assert rows == {
        "mode": ("`--mode`", "a or b", "`a`", "how; a \\| b"),
        "sizes": ("`--part-sizes`", "list of whole number", "-", "sizes"),
        "limit": ("`--part-limit`", "number, > 0, <= 1", "-", "limit"),
        "shares": ("`--part-shares`", "map to number", "-", "shares"),
        "is_on": ("`--part-is-on`", "yes or no", "yes", "on"),
        "path": ("`--part-path`", "path", "**required**", "where"),
    }


def test_nothing_of_this_machine_is_on_the_page() -> None:
    assert str(ROOT) not in page()
