"""The shared vocabulary: configurations, records, instances, errors. The lowest layer: no torch, no I/O but reading."""
