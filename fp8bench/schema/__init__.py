"""The shared words: configuration, record, instance, errors. The lowest layer; no torch, no I/O but plain reading."""
