"""How a subcommand ends early, and what the errors of other parts mean on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runtime.errors import ExitCode


class CommandError(Exception):
    """Ends the command with a message that says what to do, and an exit code."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage(message: str) -> CommandError:
    """Something on the command line, or a file it names, cannot be used."""
    return CommandError(message, ExitCode.CONFIGURATION)


@contextmanager
def calls(address: str) -> Iterator[None]:
    """Turns failed calls to the front door at `address` into a CommandError."""
    from client import ClientError

    try:
        yield
    except ClientError as error:
        if error.code == "UNAVAILABLE" and not error.reason and error.last_seq:
            raise CommandError(
                f"the answer broke off after {error.last_seq} tokens, and {address} does not "
                f"answer any more ({error}); the log of the system says why it ended",
                ExitCode.FAILED,
            ) from error
        if error.code == "UNAVAILABLE" and not error.reason:
            raise CommandError(
                f"nothing answers at {address} ({error}); start a system with `disagg up`, or "
                "check --address",
                ExitCode.FAILED,
            ) from error
        reason = error.reason or error.code
        code = ExitCode.CONFIGURATION if error.code == "INVALID_ARGUMENT" else ExitCode.FAILED
        raise CommandError(f"{reason}: {error}", code) from error
