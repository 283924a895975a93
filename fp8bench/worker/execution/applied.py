"""Proves what an optimizer does by itself: its settings, and what its first step made of the weights, given the
gradients that it had.

The comparison of whole steps (`proof`) is a blunt measure of an optimizer under Adam and in fp8: its bounds are those
of rounded gradients, and decay is a ten-thousandth of Adam's change. Here the gradients are the executed step's own, so
that nothing but float32 rounds, and the bounds are narrow.
"""

import torch

from fp8bench.schema.execution import OptimizerName
from fp8bench.worker.execution.optimizers import UpdateRule, settings_of
from fp8bench.worker.execution.parallel.shards import local
from fp8bench.worker.execution.step import Parts, Snapshot, gradient_of, gradients_are_finite
from fp8bench.worker.plain_weights import trained_weights
from fp8bench.worker.relative import norm

OF_CHANGE, OF_WEIGHT = 1e-4, 2.4e-7
"""How far a weight may be from where its gradient takes it: shares of its change (a kernel's own order of operations),
and of itself (two units of float32's last place).
"""

OF_IMPLEMENTATION = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings that say how torch computes a step, not what."""

SHOWN = 3


def faults(parts: Parts, before: Snapshot, name: OptimizerName) -> list[str]:
    """Return what is wrong about the optimizer after its first step. Every rank calls this. before: what was there
    before the step.
    """
    found = _unlike_settings(parts, name)
    if wrong := _misapplied(parts, before, name):
        weights = ", ".join(wrong[:SHOWN])
        found.append(f"its optimizer makes of the gradient of {weights} something else than {name} does")
    return found


def missed(parts: Parts, steps: int) -> list[str]:
    """Return what is wrong if an optimizer that counts its steps did not take so many. A loss scale may skip one."""
    counts = {float(state["step"]) for state in parts.optimizer.state.values() if "step" in state}
    if getattr(parts.mode, "loss_scaling", None) is not None or counts <= {float(steps)}:
        return []
    return [f"its optimizer took {min(counts):g} of {steps} steps"]


def _unlike_settings(parts: Parts, name: OptimizerName) -> list[str]:
    held = {id(weight) for group in parts.optimizer.param_groups for weight in group["params"]}
    absent = [weight for weight, parameter in trained_weights(parts.plain).items() if id(parameter) not in held]
    found = [f"its optimizer does not have {', '.join(absent[:SHOWN])}"] if absent else []
    for setting, value in settings_of(name).items():
        others = [group.get(setting) for group in parts.optimizer.param_groups if group.get(setting) != value]
        if others and setting not in OF_IMPLEMENTATION:
            found.append(f"its optimizer's {setting} is {others[0]}, and not {value}")
    return found


def _misapplied(parts: Parts, before: Snapshot, name: OptimizerName) -> list[str]:
    """Return the weights of which an optimizer's first step made something else than the named one makes of their
    gradients. Left out are weights of 16 bits, whose rounding is as large as a step, and those that are kept in fp8. A
    step with a gradient that is not finite must be skipped under a loss scale, which leaves gradients divided by it.
    """
    rule, found = UpdateRule(name), []
    skipped = getattr(parts.mode, "loss_scaling", None) is not None and not gradients_are_finite(parts)
    for key, weight in trained_weights(parts.plain).items():
        gradient, now = gradient_of(weight), local(weight).detach()
        if weight.dtype != torch.float32 or type(now.data) is not torch.Tensor or weight.grad is None:
            continue
        began = before.weights[key].to(now.device)
        one = began.clone()
        if not skipped:
            rule.step(key, one, gradient.to(one.dtype))
        if not norm(now - one) <= OF_CHANGE * norm(one - began) + OF_WEIGHT * norm(began):
            found.append(key)
    return found
