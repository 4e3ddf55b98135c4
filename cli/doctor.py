"""`disagg doctor`: can this machine run the system? Each check says ok or what to do."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.output import show, show_json, size, table
from runtime.bundled import MODEL, default_model
from runtime.errors import ExitCode

_PACKAGES = (
    ("grpcio", "client"),
    ("protobuf", "client"),
    ("pydantic", "service"),
    ("redis", "store"),
    ("tokenizers", "balancer"),
    ("jinja2", "balancer"),
    ("torch", "engine"),
    ("safetensors", "engine"),
)
_MIN_SHARED_BYTES = 64 << 20
_MIN_FREE_BYTES = 1 << 30
_OTHER_MODEL = "give the directory of a complete Hugging Face checkpoint with --model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check; `way_out` says what to do when it failed."""

    check: str
    ok: bool
    detail: str
    way_out: str = ""
    is_dependency: bool = False


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check model directory, store, ports and devices of this machine",
        description="Checks what the system needs on this machine; exit code 0 if all is well.",
        epilog="example:  disagg doctor --store redis://127.0.0.1:6379",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=default_model(),
        metavar="DIR",
        help=f"model directory (default {MODEL})",
    )
    parser.add_argument("--store", metavar="URL", help="KV store (default: start a private one)")
    parser.add_argument(
        "--port", type=int, action="append", default=[], metavar="PORT", help="must be free"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs all checks, also after one failed."""
    findings = [
        *_attempt("python", check_python),
        *_attempt("packages", check_packages),
        *_attempt("model", lambda: check_model(options.model)),
        *_attempt("store", lambda: check_store(options.store)),
        *_attempt("ports", lambda: check_ports(options.port)),
        *_attempt("devices", check_devices),
    ]
    failed = [finding for finding in findings if not finding.ok]
    if options.json:
        show_json({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
    else:
        rows = [
            ("ok" if finding.ok else "FAIL", finding.check, finding.detail) for finding in findings
        ]
        for line, finding in zip(table(rows), findings, strict=True):
            show(line)
            if not finding.ok:
                show(f"        {finding.way_out}")
        show(f"{len(findings) - len(failed)}/{len(findings)} checks ok")
    if not failed:
        return ExitCode.OK
    if any(finding.is_dependency for finding in failed):
        return ExitCode.DEPENDENCY
    return ExitCode.FAILED


def check_python() -> Iterator[Finding]:
    """The interpreter."""
    yield Finding(
        check="python",
        ok=sys.version_info >= (3, 11),
        detail=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        way_out="use Python 3.11 or newer",
    )


def check_packages() -> Iterator[Finding]:
    """Distributions that the roles on this machine need."""
    for name, extra in _PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                check=f"package {name}",
                ok=False,
                detail="not installed",
                way_out=f'pip install "disagg[{extra}]"',
                is_dependency=True,
            )
        else:
            yield Finding(check=f"package {name}", ok=True, detail=version)


def check_model(directory: Path) -> Iterator[Finding]:
    """The model directory, with the engine's own checks where the engine is installed."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        family = config.get("model_type") if isinstance(config, dict) else type(config).__name__
    except (OSError, ValueError) as error:
        yield Finding(
            check="model config", ok=False, detail=f"config.json: {error}", way_out=_OTHER_MODEL
        )
        return
    try:
        from cli import model_check
    except ModuleNotFoundError as error:
        yield Finding(
            check="model config",
            ok=True,
            detail=f"{family}, {directory}; only the engine can check more, and {error.name!r} "
            "is not installed",
        )
        is_loadable = False
    else:
        finding = _ask_engine("model config", model_check.check_config, directory)
        is_loadable = finding.ok
        yield finding
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        is_loadable = False
        yield Finding(
            check="model weights",
            ok=False,
            detail=f"no *.safetensors in {directory}",
            way_out=_OTHER_MODEL,
        )
    for path in files:
        problem, tensors = _inspect_safetensors(path)
        is_loadable = is_loadable and not problem
        yield Finding(
            check="model weights",
            ok=not problem,
            detail=problem or f"{path.name}: {tensors} tensors, {size(path.stat().st_size)}",
            way_out="copy the file again; it is cut short or damaged",
        )
    if is_loadable:
        yield _ask_engine("model tensors", model_check.check_weights, directory)
    from balancer.text import ModelFilesError, TextCodec

    try:
        codec = TextCodec(directory)
    except ModelFilesError as error:
        yield Finding(check="model tokenizer", ok=False, detail=str(error), way_out=_OTHER_MODEL)
        return
    text = f"{codec.card.vocab_size} tokens" if codec.has_text else "none: token ids only"
    yield Finding(check="model tokenizer", ok=True, detail=text)


def _ask_engine(check: str, ask: Callable[[Path], str], directory: Path) -> Finding:
    """What the engine says to a model directory."""
    try:
        return Finding(check=check, ok=True, detail=ask(directory))
    except Exception as error:
        # Its own errors are kinds of ValueError; whatever else it trips over is no good model too.
        detail = str(error) if isinstance(error, ValueError) else f"{error!r}"
        return Finding(check=check, ok=False, detail=detail, way_out=_OTHER_MODEL)


def check_store(url: str | None) -> Iterator[Finding]:
    """The KV store: the given one answers and is fit, or a private one starts."""
    from kvstore import KvStoreConfig, embedded, open_store
    from kvstore.errors import EmbeddedUnavailable, KvStoreError, StoreUrlError
    from kvstore.suitability import find_unfit
    from runtime.clock import SystemClock

    private = None
    try:
        if url is None:
            private = embedded.start()
        store = open_store(
            url or (private.url if private else ""),
            KvStoreConfig(block_tokens=1, owner="doctor"),
            fingerprint=bytes(8),
            clock=SystemClock().now,
        )
        try:
            store.ping()
            problems = find_unfit(store.facts())
        finally:
            store.close()
        detail = "answers" if private is None else "a private server starts and answers"
        yield Finding(check="store", ok=True, detail=detail)
        for problem, way_out in problems:
            yield Finding(check="store fitness", ok=False, detail=problem, way_out=way_out)
    except EmbeddedUnavailable as error:
        yield Finding(
            check="store",
            ok=False,
            detail=str(error),
            way_out='pip install "disagg[embedded]", or give --store URL',
            is_dependency=True,
        )
    except (KvStoreError, StoreUrlError) as error:
        yield Finding(
            check="store",
            ok=False,
            detail=str(error),
            way_out="start the server, or correct --store",
        )
    finally:
        if private is not None:
            private.stop()


def check_ports(ports: list[int]) -> Iterator[Finding]:
    """Loopback can be listened on, and the given ports are free."""
    for port in (0, *ports):
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                probe.listen()
                detail = f"127.0.0.1:{port} is free" if port else "loopback gives free ports"
            yield Finding(check="ports", ok=True, detail=detail)
        except (OSError, OverflowError) as error:
            yield Finding(
                check="ports",
                ok=False,
                detail=f"127.0.0.1:{port}: {error}",
                way_out="choose another port, or end the process that listens there",
            )


def check_devices() -> Iterator[Finding]:
    """Cores, memory for ranks to share, disk for logs, accelerators."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding(check="cores", ok=True, detail=f"{cores} usable")
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        yield Finding(
            check="shared memory",
            ok=free >= _MIN_SHARED_BYTES,
            detail=f"{size(free)} free in {shared}",
            way_out="enlarge /dev/shm to 64 MB or more; ranks exchange rows through it",
        )
    free = shutil.disk_usage(Path.home()).free
    yield Finding(
        check="disk",
        ok=free >= _MIN_FREE_BYTES,
        detail=f"{size(free)} free",
        way_out="free at least 1 GB",
    )
    try:
        import torch
    except ImportError:
        return  # told by the packages
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    yield Finding(check="accelerators", ok=True, detail=names or "none; models run on the CPU")


def _attempt(check: str, findings: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """All findings of a check; a missing package ends it with one of its own."""
    found: list[Finding] = []
    try:
        found.extend(findings())
    except ModuleNotFoundError as error:
        found.append(
            Finding(
                check=check,
                ok=False,
                detail=f"the package {error.name!r} is missing",
                way_out='pip install "disagg[local]"',
                is_dependency=True,
            )
        )
    return found


def _inspect_safetensors(path: Path) -> tuple[str, int]:
    """A problem or "", and the number of tensors: the header must describe the file exactly."""
    length = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            return f"{path.name} is only {length} bytes long", 0
        (header_bytes,) = struct.unpack("<Q", head)
        if header_bytes > length - 8:
            return f"{path.name} ends inside its header", 0
        try:
            header = json.loads(file.read(header_bytes))
            ends = [
                entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return f"{path.name} has a broken header", 0
    wanted = 8 + header_bytes + max(ends, default=0)
    if wanted != length:
        return f"{path.name} has {length:,} bytes, its header describes {wanted:,}", 0
    return "", len(ends)
