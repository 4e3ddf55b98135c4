"""`disagg generate PROMPT`: one answer from a running system."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from cli.access import access_of, add_access_flags
from cli.errors import CommandError, calls
from cli.output import duration, plural, say, show, show_json
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from client import Chunk, Client

_TIMEOUT_S = 600.0


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "generate",
        help="ask a running system for an answer",
        description="Sends a prompt to a running system and prints the answer.",
        epilog='example:  disagg generate "ROMEO:" --max-tokens 32 --stream',
        allow_abbrev=False,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="plain text")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="a balancer (default: the system that `disagg up` started here)",
    )
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="default 64")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default 0)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="default: from the request id")
    for name, what in (("ttft", "to the first token"), ("tpot", "per token after it")):
        parser.add_argument(
            f"--{name}",
            type=float,
            metavar="SECONDS",
            help=f"aim at this {what}; refused at once if it cannot be kept",
        )
    add_access_flags(parser)
    parser.add_argument("--stream", action="store_true", help="print the text as it comes")
    parser.add_argument(
        "--json", action="store_true", help="print JSON; the last line is the whole answer"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from cli.local import rendezvous
    from client import Sampling, Targets
    from client.wire import completion_of

    for flag, value in (("--max-tokens", options.max_tokens), ("--seed", options.seed)):
        if value is not None and value < 0:
            raise CommandError(f"{flag} {value}: give 0 or above", ExitCode.CONFIGURATION)
    address = options.address or rendezvous.find()
    if address is None:
        raise CommandError(
            "no system was started on this machine; run `disagg up`, or give --address",
            ExitCode.CONFIGURATION,
        )
    sampling = Sampling(
        max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed
    )
    targets = Targets(ttft_s=options.ttft, tpot_s=options.tpot)
    chunks: list[Chunk] = []
    with calls(address), _client(address, options) as client:
        for chunk in client.stream(options.prompt, sampling=sampling, targets=targets):
            chunks.append(chunk)
            if options.stream:
                _print_chunk(chunk, as_json=options.json)
    answer = completion_of(chunks)
    if options.json:
        show_json(
            {
                "request_id": answer.request_id,
                "text": answer.text,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "seed": answer.seed,
                "attempts": answer.attempts,
                "usage": dataclasses.asdict(answer.usage),
                "timing": dataclasses.asdict(answer.timing),
            }
        )
    elif options.stream:
        show()
    else:
        show(answer.text)
    if sys.stderr.isatty():
        timing = answer.timing
        say(
            f"[{plural(answer.usage.completion_tokens, 'token')}, {answer.finish_reason}; first "
            f"after {duration(timing.first_token_us)}, all after {duration(timing.total_us)}]"
        )
    return ExitCode.OK


def _client(address: str, options: argparse.Namespace) -> Client:
    from client import Client

    return Client(address, timeout_s=_TIMEOUT_S, access=access_of(options))


def _print_chunk(chunk: Chunk, *, as_json: bool) -> None:
    if as_json:
        if chunk.token_ids:
            show_json({"seq": chunk.seq, "token_ids": chunk.token_ids, "text": chunk.text})
    elif chunk.text:
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
