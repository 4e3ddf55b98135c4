"""`disagg`: parses the command line, runs one subcommand, turns its end into an exit code.

0 good; 1 the check or the request failed; 2 configuration or usage; 3 a dependency is missing;
4 internal. Subcommands import what they need when they run, so `disagg --help` is quick and a
machine without torch can still ask a remote system.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

from cli import (
    certs,
    config,
    demo,
    doctor,
    drain,
    explain,
    generate,
    kv,
    members,
    trace,
    up,
    verify,
)
from cli.errors import CommandError
from cli.local.signals import interruptible
from cli.planning import ledger, plan, simulate, topology
from runtime.errors import ExitCode
from runtime.masking import MaskingParser

_COMMANDS = (
    up,
    demo,
    generate,
    explain,
    trace,
    verify,
    topology,
    ledger,
    simulate,
    plan,
    kv,
    members,
    drain,
    config,
    doctor,
    certs,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = MaskingParser(
        prog="disagg",
        description="Disaggregated prefill and decode serving of DeepSeek-V4-class models.",
        epilog="example:  disagg demo",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns the exit code."""
    options = build_parser().parse_args(arguments)
    name = f"disagg {options.command}"
    try:
        with interruptible():
            return int(options.run(options))
    except CommandError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{name}: interrupted\n")
        return ExitCode.FAILED
    except BrokenPipeError:
        return ExitCode.FAILED  # the reader of our output went away
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"{name}: the package {error.name!r} is missing; install disagg[local], which brings "
            "everything this machine needs\n"
        )
        return ExitCode.DEPENDENCY
    except Exception:
        traceback.print_exc()
        sys.stderr.write(f"{name}: this is a bug of disagg; please report the lines above\n")
        return ExitCode.INTERNAL


if __name__ == "__main__":
    sys.exit(main())
