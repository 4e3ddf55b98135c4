"""The dashboards: what each shows."""

from charts.boards.parts import FAILURES, STORE
from charts.boards.ranks import DECODE, HANDOFF
from charts.boards.requests import OVERVIEW, PREFILL

BOARDS = (OVERVIEW, PREFILL, DECODE, STORE, HANDOFF, FAILURES)
