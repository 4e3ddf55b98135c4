"""The status page: what a balancer knows now, for a person with a browser."""
