"""The balancer as one engine behind `vllm.grpc.engine.VllmEngine`, for gateways that speak it."""
