"""Ranks of one group: layout, step agreement, expert dispatch, processes."""
