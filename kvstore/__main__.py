"""A private store with its janitor: `python -m kvstore`."""

import sys

from kvstore.upkeep import main

if __name__ == "__main__":
    sys.exit(main())
