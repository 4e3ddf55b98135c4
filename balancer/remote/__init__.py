"""What the balancer calls: prefill and decode members, and the shared store."""
