"""The balancer: front door, placement, and the thread of control of every request."""
