"""A whole system on this machine: which one, its processes, how to find it."""
