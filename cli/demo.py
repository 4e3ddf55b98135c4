"""`disagg demo`: the system up, one prompt through it, its journey, the system down."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cli.access import access_of
from cli.errors import calls
from cli.local.topology import add_system_flags, topology_of
from cli.output import duration, plural, say, show, size, table
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from client import Client, Completion

# The fact lies further back than the model's sliding window: the answer needs the KV that prefill
# handed over.
_PROMPT = (
    "The secret name is PROSPERO.\n"
    "And there shall in no wise enter into it any thing that defileth, neither whatsoever worketh "
    "abomination, or maketh a lie: but they which are written in the book of life. And he shewed "
    "me a pure river of water of life, clear as crystal, proceeding out of the throne.\n"
    "In the midst of the street of it, and on either side of the river, was there the tree of "
    "life, which bare twelve manner of fruits, and yielded her fruit every month.\n"
    "What is the secret name?\nThe secret name is"
)
_TIMEOUT_S = 120.0


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="start the system, answer one prompt, show its journey, stop",
        description="Starts the whole system, sends one prompt through it and shows the journey.",
        epilog='example:  disagg demo --prompt "ROMEO:"',
        allow_abbrev=False,
    )
    add_system_flags(parser)
    parser.add_argument("--prompt", default=_PROMPT, metavar="TEXT", help="plain text")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the demonstration."""
    from cli.local.launcher import running_system
    from client.checks import check_text

    with calls("the system"):
        check_text("prompt", options.prompt)  # before anything is started
    topology = topology_of(options)
    with running_system(topology) as system:
        answer = _ask(system.address, options.prompt)
        show()
        for line in _story(options.prompt, answer):
            show(line)
        show()
    show(f"demo ok: {answer.usage.completion_tokens} tokens")
    return ExitCode.OK


def _client(address: str) -> Client:
    from client import Client

    return Client(address, timeout_s=_TIMEOUT_S, access=access_of())


def _ask(address: str, prompt: str) -> Completion:
    from client import Sampling

    with calls(address), _client(address) as client:
        say("asking")
        return client.generate(prompt, sampling=Sampling(max_tokens=64))


def _story(prompt: str, answer: Completion) -> list[str]:
    timing, usage = answer.timing, answer.usage
    later = usage.completion_tokens - 1
    pace = f"{duration(timing.decode_us / later)} a token" if later > 0 else ""
    rows = [
        ("where", "what", "time", "bytes", ""),
        ("balancer", "encode, admit, place", duration(timing.placement_us), "", ""),
        ("prefill", "wait for the engine", duration(timing.prefill_queue_us), "", ""),
        (
            "prefill",
            f"compute {usage.prompt_tokens - usage.cached_tokens} tokens, sample the first",
            duration(timing.prefill_us),
            "",
            timing.prefill_member,
        ),
        (
            "store",
            "publish KV, commit the ticket",
            duration(timing.commit_us),
            size(timing.published_bytes),
            _per_token(timing.published_bytes, usage.prompt_tokens),
        ),
        (
            "decode",
            "fetch KV, verify, resume",
            duration(timing.fetch_us),
            size(timing.fetched_bytes),
            "",
        ),
        (
            "decode",
            f"generate {later} more tokens",
            duration(timing.decode_us),
            "",
            ", ".join(filter(None, (pace, timing.decode_member))),
        ),
        ("client", "first token after", duration(timing.first_token_us), "", ""),
        ("client", "last token after", duration(timing.total_us), "", ""),
    ]
    return [
        f"prompt   {_short(prompt)} ({plural(usage.prompt_tokens, 'token')})",
        f"answer   {_short(answer.text)}",
        "",
        *table(rows, right=(2, 3)),
    ]


def _per_token(num_bytes: int, tokens: int) -> str:
    return f"{num_bytes / tokens:,.0f} B a prompt token" if tokens else ""


def _short(text: str) -> str:
    """The text on one line, its middle left out if it is long."""
    line = repr(text)[1:-1]
    return line if len(line) <= 88 else f"{line[:40]} ... {line[-40:]}"
