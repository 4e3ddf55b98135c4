"""Generated protobuf and gRPC code of the package `disagg.v1`; see `proto/generate.py`."""
