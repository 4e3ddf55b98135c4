"""Prefill and decode ranks, links and caches on virtual time. Pure: `now` in, instants out."""
