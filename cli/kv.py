"""`disagg kv`: what is in a KV store, who holds what, and whether damage is noticed."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError, usage
from cli.output import plural, say, show, show_json, size, table
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from kvstore.backends.base import Backend
    from kvstore.config import StoreUrl
    from kvstore.inspection import Inspection, Survey

_SAY_EVERY = 1000
_URL_FORMS = (
    "Forms of URL: unix:///path, redis://host:port, rediss:// with TLS, redis+cluster://host:port "
    "for any node of a cluster, redis+sentinel://host,host/SERVICE, file:///directory; "
    "?password_file=PATH and ?tls_ca_file=PATH go behind each (docs/store.md)."
)


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand with its own subcommands."""
    parser = commands.add_parser(
        "kv",
        help="look into a KV store: stats, inspect, audit, flush, mutate",
        description="Looks into a KV store. `disagg up` prints the URL of its private one. A store "
        "with keyed tags needs its key in the URL: ?integrity_key_file=PATH. " + _URL_FORMS,
        epilog="example:  disagg kv audit --store unix:///tmp/disagg-store-x/store.sock",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add(actions, "stats", stats, "count what is stored, by layout and kind", "stats")
    inspecting = _add(
        actions, "inspect", inspect, "show a key, a block or a hand-off, verified", "inspect ID"
    )
    inspecting.add_argument(
        "name", metavar="KEY|TICKET", help="key, block hash (64 hex) or hand-off id (32 hex)"
    )
    _add(
        actions, "audit", audit, "list every hand-off with its lease; 1 if one is orphaned", "audit"
    )
    flushing = _add(
        actions, "flush", flush, "delete everything of a layout", "flush --fingerprint 0123..."
    )
    scope = flushing.add_mutually_exclusive_group(required=True)
    scope.add_argument("--fingerprint", metavar="HEX", help="layout fingerprint, 16 hex digits")
    scope.add_argument("--all", action="store_true", help="every layout")
    mutating = _add(
        actions,
        "mutate",
        mutate,
        "damage hand-offs at random and count what goes unnoticed",
        "mutate --count 10000",
        more="Writes hand-offs of its own, damages only those, puts back what it touched after "
        "every round, reads it once more as a control, and removes them at the end: a store in use "
        "is left as it was. Killed in between, it leaves some kilobytes under a layout of its own "
        "that end by themselves within 10 minutes; `disagg kv stats` names the layout, and `disagg "
        "kv flush --fingerprint` removes it at once.",
        store_required=False,
    )
    mutating.add_argument("--count", type=int, default=10_000, help="mutations (10000)")
    mutating.add_argument("--seed", type=int, default=0, help="the same seed, the same damage (0)")


def _add(
    actions: Any,
    name: str,
    run: Any,
    text: str,
    example: str,
    *,
    more: str = "",
    store_required: bool = True,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=text,
        description=f"{text[:1].upper()}{text[1:]}. {more}".rstrip() + f" {_URL_FORMS}",
        epilog=f"example:  disagg kv {example}" + (" --store URL" if store_required else ""),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        required=store_required,
        help="unix:///path, redis://host:port, ..., with ?integrity_key_file=PATH for keyed tags"
        + ("" if store_required else " (a private one for this run)"),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)
    return parser


def stats(options: argparse.Namespace) -> int:
    """`disagg kv stats`."""
    from kvstore.inspection import survey

    with _opened(options.store) as backend:
        found = survey(backend)
    if options.json:
        show_json(
            {
                "server": asdict(found.server),
                "layouts": {
                    fingerprint: {"values": counts.values, "bytes": counts.num_bytes}
                    for fingerprint, counts in found.layouts.items()
                },
                "control": found.control,
                "foreign_keys": found.foreign_keys,
            }
        )
        return ExitCode.OK
    for line in _survey_lines(found):
        show(line)
    return ExitCode.OK


def inspect(options: argparse.Namespace) -> int:
    """`disagg kv inspect`; 1 if nothing is there or something is damaged."""
    from kvstore.inspection import inspect as look

    with _opened(options.store) as backend:
        try:
            found = look(backend, options.name)
        except ValueError as error:
            raise usage(str(error)) from error
    if any(value.is_tagged for value in found.values):
        joint = "&" if "?" in options.store else "?"
        raise usage(
            f"what is stored under {options.name} carries keyed tags, which say nothing without "
            "the key: give the key file of the system, "
            f"--store '{options.store}{joint}integrity_key_file=PATH'"
        )
    sound = all(value.sound for value in found.values)
    if options.json:
        show_json(_inspection_json(found))
    else:
        for line in _inspection_lines(found, options.name):
            show(line)
    return ExitCode.OK if found.values and sound else ExitCode.FAILED


def audit(options: argparse.Namespace) -> int:
    """`disagg kv audit`; 1 if a hand-off is orphaned."""
    from kvstore.handoffs.leases import classify

    with _opened(options.store) as backend:
        records = [classify(entry) for entry in backend.audit()]
    orphans = sum(record.is_orphan for record in records)
    if options.json:
        rows = [{**asdict(record), "state": record.state.value} for record in records]
        show_json({"handoffs": rows, "orphans": orphans})
    else:
        cells = [("hand-off", "state", "owner", "request", "attempt", "age s", "left s", "bytes")]
        cells += [
            (
                record.handoff_id,
                record.state.value,
                record.owner or "-",
                record.request_id or "-",
                str(record.attempt),
                "-" if record.age_s is None else f"{record.age_s:.1f}",
                f"{record.remaining_s:.1f}",
                size(record.num_bytes),
            )
            for record in records
        ]
        for line in table(cells, right=(4, 5, 6, 7)) if records else ():
            show(line)
        show(f"{plural(len(records), 'hand-off')}, {plural(orphans, 'orphan')}")
    return ExitCode.FAILED if orphans else ExitCode.OK


def flush(options: argparse.Namespace) -> int:
    """`disagg kv flush`."""
    from kvstore.inspection import flush as remove
    from kvstore.keys import FINGERPRINT_BYTES

    fingerprint = None
    if options.fingerprint is not None:
        try:
            fingerprint = bytes.fromhex(options.fingerprint)
        except ValueError:
            fingerprint = b""
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise usage(f"--fingerprint is {options.fingerprint!r}, 16 hex digits are needed")
    with _opened(options.store) as backend:
        deleted = remove(backend, fingerprint)
    if options.json:
        show_json({"deleted": deleted})
    else:
        show(f"{plural(deleted, 'key')} deleted")
    return ExitCode.OK


def mutate(options: argparse.Namespace) -> int:
    """`disagg kv mutate`; 1 if a mutation went unnoticed or an undamaged hand-off is unreadable."""
    from kvstore.mutation.draws import Draws
    from kvstore.mutation.world import mutate as run
    from runtime.clock import SystemClock

    if options.count < 1:
        raise usage(f"--count is {options.count}, at least 1 is needed")

    def tell(number: int) -> None:
        if number % _SAY_EVERY == 0:
            say(f"  {number} of {options.count}")

    with _opened(options.store) as backend, _quiet_library():
        report = run(
            backend,
            Draws(options.seed),
            count=options.count,
            clock=SystemClock().now,
            on_round=tell,
        )
    undetected, unreadable = len(report.undetected), len(report.unreadable)
    if options.json:
        show_json(
            {
                "mutations": report.mutations,
                "undetected": undetected,
                "unreadable_controls": unreadable,
                "by_kind": dict(sorted(report.by_kind.items())),
                "seed": options.seed,
                "examples": [*report.undetected[:10], *report.unreadable[:10]],
            }
        )
    else:
        rows = [(kind, str(count)) for kind, count in sorted(report.by_kind.items())]
        for line in table(rows, right=(1,)):
            show(line)
        for example in report.undetected[:10]:
            show(f"unnoticed: {example} of seed {options.seed}")
        for example in report.unreadable[:10]:
            show(f"unreadable though undamaged: {example} of seed {options.seed}")
        show(
            f"{plural(report.mutations, 'mutation')}, {undetected} undetected, "
            f"{unreadable} undamaged hand-offs unreadable"
        )
    return ExitCode.FAILED if undetected or unreadable else ExitCode.OK


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Thousands of quarantined values are the purpose of a run, no news."""
    logger = logging.getLogger("kvstore")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _opened(url: str | None) -> Iterator[Backend]:
    """The store at a URL, or a private one; errors of the library end the command.

    These commands look into stores and make none, so a directory that is not there stays so.
    """
    from kvstore import KvStoreConfig, embedded
    from kvstore.config import parse_url
    from kvstore.errors import (
        EmbeddedUnavailable,
        KvStoreError,
        StoreDown,
        StoreFull,
        StoreRefused,
        StoreUrlError,
    )
    from kvstore.store import open_backend
    from runtime.clock import SystemClock

    try:
        if url is None:
            with embedded.start() as server, _opened(server.url) as backend:
                yield backend
            return
        _require_directory(parse_url(url))
        config = KvStoreConfig(block_tokens=1, owner="disagg kv")
        backend = open_backend(url, config, SystemClock().now)
    except StoreUrlError as error:
        raise usage(str(error)) from error
    except EmbeddedUnavailable as error:
        raise CommandError(str(error), ExitCode.DEPENDENCY) from error
    try:
        yield backend
    except (StoreDown, StoreFull, StoreRefused) as error:
        # Nothing was found out about what is stored: that is no failed check.
        raise CommandError(str(error), ExitCode.DEPENDENCY) from error
    except KvStoreError as error:
        raise CommandError(str(error), ExitCode.FAILED) from error
    finally:
        backend.close()


def _require_directory(url: StoreUrl) -> None:
    if url.scheme == "file" and not Path(url.path).is_dir():
        raise usage(f"--store: there is no directory {url.path}; give the directory of a store")


def _survey_lines(found: Survey) -> Iterator[str]:
    server = found.server
    limit = size(server.max_bytes) if server.max_bytes else "no limit"
    used, keys = size(server.used_bytes), plural(server.num_keys, "key")
    yield f"{server.address}: {used} of {limit}, {keys}"
    for fingerprint, counts in found.layouts.items():
        yield f"layout {fingerprint}"
        rows = [
            (kind, str(count), size(counts.num_bytes[kind]))
            for kind, count in sorted(counts.values.items())
        ]
        yield from table(rows, right=(1, 2))
    rest = {**found.control, "foreign": found.foreign_keys}
    yield ", ".join(f"{kind} {count}" for kind, count in sorted(rest.items()))


def _inspection_json(found: Inspection) -> dict[str, object]:
    lease, body = found.lease, found.body
    return {
        "values": [asdict(value) for value in found.values],
        "lease": {**asdict(lease), "state": lease.state.value} if lease else None,
        "body": None
        if body is None
        else {
            "request_id": body.request_id,
            "attempt": body.attempt,
            "fingerprint": body.fingerprint.hex(),
            "block_tokens": body.block_tokens,
            "num_tokens": body.num_tokens,
            "num_blocks": len(body.block_digests),
            "last_block_hash": body.last_block_hash.hex(),
            "producer": body.producer,
            "producer_rank": body.producer_rank,
        },
    }


def _inspection_lines(found: Inspection, name: str) -> Iterator[str]:
    if not found.values and found.lease is None:
        yield f"nothing is stored under {name}"
        return
    if lease := found.lease:
        yield f"lease: {lease.state.value} ({lease.reason}), owner {lease.owner or '-'}"
    if body := found.body:
        yield (
            f"body: request {body.request_id} attempt {body.attempt}, "
            f"{plural(body.num_tokens, 'token')} in {plural(len(body.block_digests), 'block')}, "
            f"written by {body.producer}"
        )
    for value in found.values:
        verdict = "sound" if value.sound else f"DAMAGED: {value.fault}"
        yield f"{value.kind:<10} {size(value.num_bytes):>10}  {verdict}  {value.key}"
