"""`python -m cli`: the `disagg` command without its entry point."""

from __future__ import annotations

import sys

from cli.main import main

if __name__ == "__main__":
    sys.exit(main())
