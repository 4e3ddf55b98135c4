"""What a process does before it serves.

Errors end it with one clear line on standard error and a stable exit code; what the start left in
memory is taken out of the collector's way.
"""

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from runtime.errors import ExitCode


@contextmanager
def exits(prog: str, codes: Mapping[type[Exception], ExitCode]) -> Iterator[None]:
    """Ends the process if the body raises an exception of `codes` or of a subclass.

    Args:
        prog: Name of the program; begins the line.
        codes: Exit code by class; the most specific class decides.

    Raises:
        SystemExit: With the code, after the message of the exception was written.
    """
    try:
        yield
    except Exception as error:
        for cls in type(error).__mro__:
            code = codes.get(cls)
            if code is not None:
                text = " ".join(str(error).split())
                sys.stderr.write(f"{prog}: {text}\n")
                sys.stderr.flush()
                raise SystemExit(int(code)) from error
        raise


def settle() -> None:
    """Takes what lives as long as the process, modules above all, out of full collections.

    A full collection stops every stream of the process; walking what the start left is most of it.
    Call once per process, when nearly everything that stays is there.
    """
    gc.collect()
    gc.freeze()
