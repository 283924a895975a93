"""Builders of what a rank samples while it runs, for `builders`, which offers them beside its own."""

from typing import Any

from fp8bench.schema.rank import RankSamples, RankTelemetry, TelemetrySeries


def rank_samples(
    rank: int = 0, step_s: tuple[float, ...] = (0.1, 0.1, 0.1), warmup: int = 2, **changes: Any
) -> RankSamples:
    """One rank's samples; a warm-up step takes a second."""
    values: dict[str, Any] = {
        "warmup_step_s": (1.0,) * warmup,
        "host_s": tuple(time * 0.5 for time in step_s),
        "data_wait_s": tuple(time * 0.1 for time in step_s),
        "forward_s": tuple(time * 0.3 for time in step_s),
        "backward_s": tuple(time * 0.6 for time in step_s),
        "optimizer_s": tuple(time * 0.1 for time in step_s),
        "recompilations": 0,
        "loss": tuple(7.0 - 0.5 * step for step in range(warmup + len(step_s))),
    }
    return RankSamples(rank=rank, step_s=step_s, **{**values, **changes})


def steps_about(step_time_s: float, count: int = 21, spread: float = 0.01) -> tuple[float, ...]:
    """So many steps (an odd number) within `spread` of a time, which is exactly their median. They look like noise, and
    are the same in every call.
    """
    places = [place * 8 % count for place in range(count)]
    return tuple(step_time_s * (1 + spread * (2 * place / (count - 1) - 1)) for place in places)


def telemetry(rank: int = 0, samples: int = 4, **changes: Any) -> RankTelemetry:
    """An H200 in good health: one sample a second, no throttling. changes: columns of the series, or fields."""
    columns: dict[str, Any] = {
        "at_s": tuple(map(float, range(samples))),
        **{"sm_clock_mhz": 1755, "memory_clock_mhz": 3201, "power_w": 650.0, "temperature_c": 60},
        **{"utilization_percent": 99, "throttle_reasons": 0},
    }
    columns |= {name: changes.pop(name) for name in list(changes) if name in columns}
    columns = {name: value if isinstance(value, tuple) else (value,) * samples for name, value in columns.items()}
    columns["energy_j"] = tuple(650.0 * place for place in range(samples))
    values: dict[str, Any] = {
        "power_limit_w": 700.0,
        "max_sm_clock_mhz": 1980,
        "timed_s": float(samples),
        # The counter grows by 650 J a second.
        "energy_j": 650.0 * changes.get("timed_s", float(samples)),
        "series": TelemetrySeries(**columns),
    }
    return RankTelemetry(rank=rank, **{**values, **changes})
