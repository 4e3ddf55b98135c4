"""The named vectors of `tests/vectors`, by name."""

import json
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parents[1] / "vectors"


def vectors(file: str) -> dict[str, dict[str, Any]]:
    """Returns the entries of one file: name to `inputs` and `expected`."""
    entries = json.loads((DIRECTORY / f"{file}.json").read_text(encoding="utf-8"))
    return {entry["name"]: entry for entry in entries}
