"""Hand-offs and their leases: commit, open, fetch, release, audit."""
