"""The contract between processes: generated wire types in `disagg.v1` and the block hash."""
