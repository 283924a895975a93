"""Made-up records of collectives."""

import builders

from fp8bench.kinds.collectives import CollectivesRecord, fingerprint
from fp8bench.schema.collectives import CollectivesConfig, CollectiveTiming

TIMED = {("all-reduce", 1024): 20e-6, ("all-reduce", 2**30): 4e-3, ("all-gather", 2**30): 2e-3}


def collectives_record(instance="p5", ranks=8, timed=None, minutes=0, nodes=1, **changes):
    """timed: seconds by operation and bytes."""
    timed = timed or TIMED
    config = CollectivesConfig(
        device="cuda", world_size=ranks, nodes=nodes, dtypes=("bf16",),
        operations=tuple(dict.fromkeys(name for name, _ in timed)),
        sizes_bytes=tuple(sorted({size for _, size in timed})), rounds=2, seconds=0.1,
    )  # fmt: skip
    values = {
        **builders.head(instance, "collectives", minutes),
        "fingerprint": fingerprint(config),
        "environment": builders.environment(),
        "machine": builders.machine_called(instance),
        "config": config,
        "backend": "nccl",
        "timings": tuple(
            CollectiveTiming(
                operation=operation, dtype="bf16", size_bytes=size, time_s=time_s,
                time_ci_s=(time_s * 0.98, time_s * 1.02), rounds_s=((time_s,) * 20, (time_s,) * 20),
            )
            for (operation, size), time_s in timed.items()
        ),
    }  # fmt: skip
    return CollectivesRecord(**{**values, **changes})
