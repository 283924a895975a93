"""A record of numerics made by hand, for what looks at one."""

from builders import environment, head

from fp8bench.kinds.numerics import NumericsRecord
from fp8bench.schema.numerics import INPUTS, LAYERS, TENSORS, AmaxJump, LayerError, NumericsConfig, ScalingTrace

SIZES = {"baseline-bf16": 3e-3, "torchao-float8:tensorwise": 4e-2, "te-fp8:delayed": 3.9e-2}
STEPS, UP_AT, DOWN_AT = 12, 4, 8


def row(mode="te-fp8:delayed", layer="linear", name="normal", tensor="output", **changes):
    """An ok row."""
    values = {
        "status": "ok",
        "relative_error": SIZES.get(mode, 0.05),
        "sqnr_db": 27.96,
        "cosine": 0.999,
        "max_abs_error": 0.2,
        "held_in": "bfloat16",
        "rounding_error": 1.7e-3,
        "saturated": 0.0 if layer == "linear" else None,
        "flushed": 0.0123 if layer == "linear" else None,
    }
    return LayerError(mode=mode, layer=layer, input=name, tensor=tensor, **{**values, **changes})


def refused(mode="te-fp8:mxfp8", reason="it needs another GPU", status="unsupported", **changes):
    """The row of a mode that did not run."""
    return LayerError(mode=mode, status=status, reason=reason, remedy="Buy one", **changes)


def trace(scaling="delayed", algo="max", history_len=1024, source="simulated", back=None):
    """back: the step from which the scale is right again after the fall; None: never in what is shown."""
    sizes = [100.0 if UP_AT <= step < DOWN_AT else 1.0 for step in range(STEPS)]
    late = [1.0, *sizes[:-1]] if scaling == "delayed" else sizes
    holds = [100.0 if step >= DOWN_AT and (back is None or step < back) else late[step] for step in range(STEPS)]
    lost = [scaling == "delayed" and step == UP_AT for step in range(STEPS)]
    return ScalingTrace(
        scaling=scaling,
        algo=algo,
        history_len=history_len,
        source=source,
        amax=tuple(sizes),
        scale=tuple(448 / hold for hold in holds),
        saturated=tuple(0.96 if one else 0.0 for one in lost),
        flushed=(0.0,) * STEPS,
        relative_error=tuple(0.97 if one else 0.026 for one in lost),
    )


def history(measured=False):
    """Every scheme; Transformer Engine's beside them where `measured`."""
    schemes = [("max", 1024, None), ("max", 16, DOWN_AT + 3), ("most_recent", 16, DOWN_AT + 1)]
    traces = [trace(algo=algo, history_len=length, back=back) for algo, length, back in schemes]
    traces.append(trace("current", None, None, back=DOWN_AT))
    if measured:
        traces += [trace(algo=algo, history_len=n, back=back, source="transformer_engine") for algo, n, back in schemes]
    return AmaxJump(steps=STEPS, up_at=UP_AT, down_at=DOWN_AT, factor=100, largest=448, traces=tuple(traces))


def record(*rows, instance="p5", minutes=0, measured=False, **changes):
    """Three modes on both layers with every input that they take, and one that did not run; or the rows given."""
    if not rows:
        rows = tuple(
            row(mode, layer, name, tensor)
            for layer in LAYERS
            for mode in SIZES
            for name in INPUTS
            for tensor in TENSORS
            if layer == "linear" or not name.endswith("exact")
        )
        rows = (refused(), *rows)
    modes = tuple(dict.fromkeys([*SIZES, *(one.mode for one in rows)]))
    ok = any(one.status == "ok" for one in rows)
    values = {
        **head(instance, "numerics", minutes),
        "status": "ok" if ok else rows[0].status,
        "reason": None if ok else rows[0].reason,
        "fingerprint": {"kind": "numerics"},
        "environment": environment(),
        "config": NumericsConfig(
            device="cuda", modes=modes, layers=LAYERS, inputs=INPUTS, width=1280, tokens=2048, seed=0
        ),
        "rows": rows,
        "history": history(measured),
    }
    return NumericsRecord(**{**values, **changes})
