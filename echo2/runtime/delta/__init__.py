"""Lossless deltas of snapshots: `codec.delta_pieces`, `codec.apply_delta`; numpy and zstd, no torch."""
