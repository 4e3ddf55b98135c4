"""Golden files: prompts with the token ids an independent implementation generates greedily.

Two schemas are read: `cases[].input_ids / greedy_ids` (the tiny models' own files) and
`prompts[].input_ids / greedy`. `kv_quantisers` says whether the file was made with the model's KV
quantisers; absent means off.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cli.errors import usage

_SCHEMAS = {"cases": "greedy_ids", "prompts": "greedy"}
_QUANTISERS = {True: "on", False: "off", None: "off", "on": "on", "off": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt and its continuation."""

    name: str
    input_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A golden file; `kv_quantisers` is on or off."""

    cases: tuple[Case, ...]
    kv_quantisers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One prompt compared.

    Attributes:
        found: Token ids generated; fewer than wanted if the request failed.
        error: Why the request failed; empty if it did not.
        attempts: How often it was dispatched.
    """

    case: Case
    found: tuple[int, ...]
    error: str = ""
    attempts: int = 1

    @property
    def is_equal(self) -> bool:
        """Whether every token is the expected one."""
        return self.found == self.case.greedy_ids

    @property
    def num_equal(self) -> int:
        """Tokens before the first difference; behind it a comparison means nothing."""
        pairs = zip(self.found, self.case.greedy_ids, strict=False)
        for index, (found, wanted) in enumerate(pairs):
            if found != wanted:
                return index
        return min(len(self.found), len(self.case.greedy_ids))

    def difference(self) -> dict[str, object]:
        """Where and how it differs first."""
        index = self.num_equal
        wanted, found = self.case.greedy_ids, self.found
        return {
            "prompt": self.case.name,
            "prompt_tokens": len(self.case.input_ids),
            "position": index,
            "expected": wanted[index] if index < len(wanted) else None,
            "found": found[index] if index < len(found) else None,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All comparisons of a file."""

    comparisons: tuple[Comparison, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all prompts are equal."""
        return all(item.is_equal for item in self.comparisons)

    def as_json(self) -> dict[str, object]:
        """The object that `disagg verify --json` prints."""
        first = next((item for item in self.comparisons if not item.is_equal), None)
        return {
            "prompts": len(self.comparisons),
            "prompts_equal": sum(item.is_equal for item in self.comparisons),
            "tokens": sum(len(item.case.greedy_ids) for item in self.comparisons),
            "tokens_equal": sum(item.num_equal for item in self.comparisons),
            "first_difference": first.difference() if first is not None else None,
        }

    def __str__(self) -> str:
        """The line that `disagg verify` prints."""
        value = self.as_json()
        return (
            f"prompts {value['prompts_equal']}/{value['prompts']} equal, "
            f"tokens {value['tokens_equal']}/{value['tokens']} equal"
        )


def load_golden(path: Path) -> Golden:
    """Reads a golden file.

    Raises:
        CommandError: It cannot be read or has neither schema.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise usage(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise usage(f"{path}: is not JSON: {error}") from error
    kind = next((key for key in _SCHEMAS if isinstance(content, dict) and key in content), None)
    if kind is None:
        raise usage(f"{path}: has neither `cases` nor `prompts`; give a golden file")
    quantisers = content.get("kv_quantisers")
    if isinstance(quantisers, list | dict) or quantisers not in _QUANTISERS:
        raise usage(f"{path}: kv_quantisers is {quantisers!r}; it should be on or off")
    cases = tuple(_case(path, kind, number, entry) for number, entry in enumerate(content[kind]))
    if not cases:
        raise usage(f"{path}: `{kind}` is empty; there is nothing to verify")
    return Golden(cases=cases, kv_quantisers=_QUANTISERS[quantisers])


def _case(path: Path, kind: str, number: int, entry: object) -> Case:
    where = f"{path}: {kind}[{number}]"
    if not isinstance(entry, dict):
        raise usage(f"{where} is no object")
    values = {}
    for key in ("input_ids", _SCHEMAS[kind]):
        ids = entry.get(key)
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            raise usage(f"{where}.{key} is no list of token ids; this file cannot be verified")
        values[key] = tuple(ids)
    return Case(
        name=str(entry.get("name", number)),
        input_ids=values["input_ids"],
        greedy_ids=values[_SCHEMAS[kind]],
    )
