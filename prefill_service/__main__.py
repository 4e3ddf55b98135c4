"""Runs a prefill group: `python -m prefill_service --store URL`."""

import sys

from prefill_service.rank import main

if __name__ == "__main__":
    sys.exit(main())
