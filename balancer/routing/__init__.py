"""Placement: which prefill and which decode member serve a request. Pure."""
