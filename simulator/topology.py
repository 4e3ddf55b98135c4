"""A cluster to simulate: engines, decode ranks, caches and links; the form of its file.

TOML or JSON with the tables `prefill`, `decode`, `store` and `front`, and `hardware` and `model` at
the top. What is not given has a default; what is unknown is refused. All fields: docs/simulator.md.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

MAX_FILE_BYTES = 1_000_000
CACHES = ("shared", "local", "pooled")

Section = TypeVar("Section")


class TopologyError(ValueError):
    """A topology that cannot be; the message names field, value and what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlan:
    """Prefill groups.

    Args:
        groups: Lockstep groups.
        ranks: Engines of a group; they share the experts.
        attn_tp: Accelerators that are one engine.
        chunk_tokens: Rows of an engine in one step.
        cache_bytes: Host memory of an engine for prefixes, with `store.cache` local or pooled.
    """

    groups: int = 1
    ranks: int = 8
    attn_tp: int = 1
    chunk_tokens: int = 8192
    cache_bytes: float = 0.0

    @property
    def engines(self) -> int:
        """Engines of all groups."""
        return self.groups * self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """Decode groups.

    Args:
        groups: Lockstep groups.
        ranks: Engines of a group.
        attn_tp: Accelerators that are one engine.
        max_running: Sequences of an engine.
    """

    groups: int = 1
    ranks: int = 64
    attn_tp: int = 1
    max_running: int = 256

    @property
    def engines(self) -> int:
        """Engines of all groups."""
        return self.groups * self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlan:
    """Where KV is between prefill and decode, and where prefixes are found.

    Args:
        cache: `shared`: one store, any engine finds any prefix. `local`: each engine finds its own.
            `pooled`: each engine finds its own, and fetches the best of the others.
        capacity_bytes: What the shared store holds.
        gbits_per_s: What the store's servers carry together, each direction.
    """

    cache: str = "shared"
    capacity_bytes: float = 4e12
    gbits_per_s: float = 3200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPlan:
    """The balancer and its surroundings.

    Args:
        max_tokens: What clients ask for at most; a longer answer of the trace asks for its length.
        hop_ms: One way between two processes.
        heartbeat_s: Between two heartbeats of a member.
        expert_skew: Load of the busiest expert rank over the mean.
        replay_tokens: Rows kept by decoder replay; 0 for off.
        max_model_len: Longest prompt and answer; 0 for what the model takes.
        max_running: Requests admitted at once; 0 for as many as decode has slots.
        max_waiting: Requests that may wait for admission.
        first_token_s: Seconds a caller waits for the first token; 0 for as long as it takes.
    """

    max_tokens: int = 2048
    hop_ms: float = 0.5
    heartbeat_s: float = 1.0
    expert_skew: float = 1.1
    replay_tokens: int = 0
    max_model_len: int = 0
    max_running: int = 0
    max_waiting: int = 100_000
    first_token_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A cluster.

    Args:
        hardware: Name of a profile.
        hardware_changes: Fields of the profile with other values.
        model: Name or directory of a model.
    """

    hardware: str = "h800"
    hardware_changes: Mapping[str, object] = field(default_factory=dict)
    model: str = "v4.1-flash"
    prefill: PrefillPlan = PrefillPlan()
    decode: DecodePlan = DecodePlan()
    store: StorePlan = StorePlan()
    front: FrontPlan = FrontPlan()


def read_topology(path: Path) -> Topology:
    """Reads a topology file.

    Raises:
        TopologyError: it cannot be read, or holds something that cannot be.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TopologyError(f"{path} cannot be read: {error.strerror}; check --topology") from error
    if len(content) > MAX_FILE_BYTES:
        raise TopologyError(f"{path} is larger than {MAX_FILE_BYTES} bytes; that is no topology")
    try:
        text = content.decode("utf-8")
        raw = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"{path} is neither TOML nor JSON: {error}") from error
    try:
        return parse_topology(raw)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from error


def parse_topology(raw: Mapping[str, Any]) -> Topology:
    """A topology from the parsed content of its file; see `read_topology`."""
    known = {"hardware", "hardware_changes", "model", "prefill", "decode", "store", "front"}
    if unknown := sorted(set(raw) - known):
        raise TopologyError(f"there is no {unknown[0]!r}; known: {', '.join(sorted(known))}")
    topology = Topology(
        hardware=_text(raw, "hardware", "h800"),
        hardware_changes=_table(raw, "hardware_changes"),
        model=_text(raw, "model", "v4.1-flash"),
        prefill=_section(PrefillPlan, raw, "prefill"),
        decode=_section(DecodePlan, raw, "decode"),
        store=_section(StorePlan, raw, "store"),
        front=_section(FrontPlan, raw, "front"),
    )
    _check(topology)
    return topology


def _check(topology: Topology) -> None:
    """What must hold between fields."""
    prefill, store = topology.prefill, topology.store
    if store.cache not in CACHES:
        raise TopologyError(f"store.cache is {store.cache!r}; give one of {', '.join(CACHES)}")
    if store.cache != "shared" and not prefill.cache_bytes:
        raise TopologyError(
            f"store.cache is {store.cache!r} and prefill.cache_bytes is 0: engines would keep "
            "nothing; give prefill.cache_bytes, or store.cache 'shared'"
        )
    if topology.front.expert_skew < 1:
        raise TopologyError(
            f"front.expert_skew is {topology.front.expert_skew}; the busiest rank is at least the "
            "mean: give 1 or more"
        )


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name, {})
    if not isinstance(found, dict):
        raise TopologyError(f"{name} is {found!r}; a table of fields is wanted")
    return found


def _text(raw: Mapping[str, Any], name: str, default: str) -> str:
    found = raw.get(name, default)
    if not isinstance(found, str) or not found:
        raise TopologyError(f"{name} is {found!r}; a name is wanted")
    return found


_MAY_BE_ZERO = {"cache_bytes", "hop_ms", "replay_tokens", "max_model_len", "capacity_bytes"}
_MAY_BE_ZERO |= {"max_running", "max_waiting", "first_token_s"}
_LARGEST = {"groups": 4096, "ranks": 4096, "attn_tp": 64}


def _section(kind: type[Section], raw: Mapping[str, Any], name: str) -> Section:
    """A table of the file as its dataclass, every value checked."""
    table = _table(raw, name)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key, value in table.items():
        where = f"{name}.{key}"
        if key not in fields:
            raise TopologyError(f"there is no {where}; known: {', '.join(sorted(fields))}")
        if fields[key].type == "str":
            if not isinstance(value, str):
                raise TopologyError(f"{where} is {value!r}; a text is wanted")
            continue
        wanted = "whole number" if fields[key].type == "int" else "number"
        allowed = int if fields[key].type == "int" else int | float
        lowest = 0 if key in _MAY_BE_ZERO else 1 if allowed is int else 1e-9
        if isinstance(value, bool) or not isinstance(value, allowed) or not lowest <= value < 1e18:
            raise TopologyError(
                f"{where} is {value!r}; a {wanted} {'above' if lowest else 'from'} 0 is wanted"
            )
        if value > _LARGEST.get(key, 1e18):
            raise TopologyError(f"{where} is {value}; at most {_LARGEST[key]} can be simulated")
    return kind(**table)
