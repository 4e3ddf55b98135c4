"""What the store tells prefix routers: which blocks came and went, in vLLM's wire format."""
