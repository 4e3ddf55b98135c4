"""Runs a decode group: `python -m decode_service --store URL`."""

import sys

from decode_service.rank import main

if __name__ == "__main__":
    sys.exit(main())
