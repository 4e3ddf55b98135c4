"""Operations for tests: some replaced, or all of them recorded."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from disagg_kernels import Kernels
from disagg_kernels.backend import Choice
from disagg_kernels.reference import OPERATIONS


def kernels_with(**replacements: Callable[..., Any]) -> Kernels:
    """Returns the reference operations with some implementations replaced."""
    table = {**OPERATIONS, **replacements}
    return Kernels(
        "cpu",
        {
            name: (implementation, Choice(operation=name, backend="test", reason="test"))
            for name, implementation in table.items()
        },
    )


class Recorder:
    """Keeps the results of every operation a model runs.

    Attributes:
        kernels: Give these to the model.
        calls: Operation to its calls in order, each a tuple of copied results.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[torch.Tensor, ...]]] = defaultdict(list)
        self.kernels = kernels_with(
            **{name: self._recorded(name, fn) for name, fn in OPERATIONS.items()}
        )

    def results(self, operation: str, place: int = 0) -> list[torch.Tensor]:
        """Returns one result of every call of an operation."""
        return [results[place] for results in self.calls[operation]]

    def _recorded(self, name: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            result = implementation(*arguments)
            results = result if isinstance(result, tuple) else (result,)
            self.calls[name].append(tuple(item.clone() for item in results))
            return result

        return run
