"""The chart rendered by a real helm; each render once per run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import fetch_helm
from charts.golden import RenderError, presets, render

Objects = list[dict[str, Any]]
Rendered = Callable[..., Objects]


@pytest.fixture(scope="session")
def helm() -> Path:
    """The binary; downloaded on the first run."""
    try:
        return fetch_helm.helm_path()
    except fetch_helm.Unavailable as error:
        pytest.skip(f"NO HELM, THE CHART IS NOT TESTED: {error}")


@pytest.fixture(scope="session")
def rendered(helm: Path) -> Rendered:
    """Objects for the arguments of `helm template`."""
    known: dict[tuple[str, ...], Objects] = {}

    def objects(*arguments: str) -> Objects:
        if arguments not in known:
            known[arguments] = parse(render(helm, *arguments))
        return known[arguments]

    return objects


@pytest.fixture(scope="session")
def refused(helm: Path) -> Callable[..., str]:
    """What helm says to values that it must refuse."""

    def text(*arguments: str) -> str:
        with pytest.raises(RenderError) as caught:
            render(helm, *arguments)
        return str(caught.value)

    return text


@pytest.fixture(params=presets(), ids=lambda path: path.name.removesuffix("-values.yaml"))
def preset(request: pytest.FixtureRequest, rendered: Rendered) -> Objects:
    """All objects of a preset."""
    return rendered("--values", str(request.param))


def parse(text: str) -> Objects:
    """The objects of a render."""
    return [document for document in yaml.safe_load_all(text) if document]
