"""Creates optimizers, and proves what one does by itself: its settings, and what its first step made of
the weights, given the gradients that it had.

On a GPU they are fused: torch's documentation ranks fused above foreach above a loop. Adam keeps its step count on the
device (capturable), so that a CUDA graph can contain a step. On a CPU, and for SGD of sharded weights, which torch
cannot fuse, torch's default applies. The weights of each mesh are a separate group, as one kernel call needs.

What they do to a weight is written out once more (`UpdateRule`, by torch's documentation): torch's optimizers run hooks
that anybody may register, and a program may replace their methods; then both sides of a comparison would change. The
comparison of whole steps (`proof`) is a blunt measure under Adam and in fp8. Here only float32 rounds, and bounds are
narrow.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fp8bench.records.select import grouped
from fp8bench.schema.execution import ChosenOptimizer, OptimizerName
from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.step import Parts, Snapshot, gradient_of, gradients_are_finite
from fp8bench.worker.plain_weights import SHOWN, trained_weights
from fp8bench.worker.rounding import norm


class NoOptimizer(Optimizer):
    """An optimizer that changes no weight, so a step ends after backward; it only clears gradients."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> Any: ...


OPTIMIZERS: dict[OptimizerName, tuple[Any, dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.001, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.0001}),
    "adamw": (torch.optim.AdamW, {"lr": 0.0001, "weight_decay": 0.01}),
    "none": (NoOptimizer, {}),
}
"""SGD's settings are those of the articles. Adam's rate is a tenth of torch's default, under which a large transformer
diverges without a warm-up of its rate.
"""


def make_optimizer(chosen: ChosenOptimizer, parameters: Iterable[nn.Parameter], device: torch.device) -> Optimizer:
    groups = grouped(parameters, lambda one: one.device_mesh if isinstance(one, DTensor) else None)
    make, own = _made_of(chosen)
    settings: dict[str, Any] = dict(own)
    if chosen.name != "none" and _fused(chosen.name, device, sharded=any(mesh is not None for mesh in groups)):
        settings["fused"] = True
    if device.type == "cuda" and chosen.name in ("adam", "adamw"):
        settings["capturable"] = True
    made: Optimizer = make([{"params": group} for group in groups.values()], **settings)
    return made


def described(chosen: ChosenOptimizer, device: torch.device, sharded: bool = False) -> str:
    """Return the optimizer's name in the fingerprint, with its settings and, if fp8bench chooses it, `fused`."""
    if chosen.name == "none":
        return chosen.name
    made, own = _made_of(chosen)
    settings = [f"{setting}={value:g}" for setting, value in own.items()]
    settings += ["fused"] if _fused(chosen.name, device, sharded) else []
    return f"{made.__name__}({', '.join(settings)})"


def _made_of(chosen: ChosenOptimizer) -> tuple[Any, dict[str, float]]:
    make, own = OPTIMIZERS[chosen.name]
    rate = {} if chosen.learning_rate is None or chosen.name == "none" else {"lr": chosen.learning_rate}
    return make, {**own, **rate}


def _fused(name: OptimizerName, device: torch.device, sharded: bool) -> bool:
    return device.type == "cuda" and not (sharded and name == "sgd")


def settings_of(chosen: ChosenOptimizer) -> dict[str, Any]:
    """Return torch's settings of the optimizer, with those that differ from its defaults; none for `none`."""
    make, own = _made_of(chosen)
    return dict(make([torch.zeros(1)], **own).defaults)


class UpdateRule:
    """The rule for weights. state: what it keeps of each, by torch's name of it and the weight's."""

    @classmethod
    def after(cls, parts: Parts, optimizer: ChosenOptimizer, names: Iterable[str]) -> "UpdateRule":
        """Return the rule with a copy of what the optimizer keeps of some weights."""
        rule, weights = cls(optimizer), trained_weights(parts.plain)
        for name in names:
            for kind, value in parts.optimizer.state.get(weights[name], {}).items():
                if kind == "step":
                    rule._steps[name] = round(float(value))
                elif isinstance(value, Tensor):
                    rule.state[kind][name] = local(value).clone()
        return rule

    def __init__(self, optimizer: ChosenOptimizer) -> None:
        self.state: dict[str, dict[str, Tensor]] = defaultdict(dict)
        self.name = optimizer.name
        self._settings = settings_of(optimizer)
        self._steps: Counter[str] = Counter()

    @torch.no_grad()
    def step(self, name: str, weight: Tensor, gradient: Tensor) -> None:
        if self.name == "none":
            return
        self._steps[name] += 1
        rate = float(self._settings["lr"])
        weight.mul_(1 - rate * float(self._settings["weight_decay"]))
        if self.name == "sgd":
            kept = self._kept("momentum_buffer", name, gradient)
            kept.mul_(float(self._settings["momentum"])).add_(gradient)
            weight.sub_(kept, alpha=rate)
            return
        # Adam's two means are of the gradient and of its square.
        first, second = self._settings["betas"]
        mean = self._kept("exp_avg", name, gradient).lerp_(gradient, 1 - first)
        square = self._kept("exp_avg_sq", name, gradient)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        taken = self._steps[name]
        size = square.sqrt().div_(math.sqrt(1 - second**taken)).add_(float(self._settings["eps"]))
        weight.addcdiv_(mean, size, value=-rate / (1 - first**taken))

    def _kept(self, kind: str, name: str, like: Tensor) -> Tensor:
        kept = self.state[kind]
        if name not in kept:
            kept[name] = torch.zeros_like(like)
        return kept[name]


FOLLOWED = 1 << 26
"""Of so many numbers, 0.25 GB, a step is followed after timing."""

OF_CHANGE, OF_WEIGHT = 1e-4, 2.4e-7
"""How far a weight may be from where its gradient takes it: shares of its change (a kernel's own order of operations),
and of itself (two units of float32's last place).
"""


def faults(parts: Parts, before: Snapshot, chosen: ChosenOptimizer) -> list[str]:
    """Return what is wrong about the optimizer after its first step. before: that. Every rank calls this."""
    held = {id(weight) for group in parts.optimizer.param_groups for weight in group["params"]}
    absent = [weight for weight, parameter in trained_weights(parts.plain).items() if id(parameter) not in held]
    found = [f"its optimizer does not have {', '.join(absent[:SHOWN])}"] if absent else []
    for setting, value in settings_of(chosen).items():
        others = [group.get(setting) for group in parts.optimizer.param_groups if group.get(setting) != value]
        # These say how torch computes a step, not what.
        if others and setting not in ("foreach", "fused", "capturable", "differentiable"):
            found.append(f"its optimizer's {setting} is {others[0]}, and not {value}")
    return [*found, *misapplied(parts, before.weights, UpdateRule(chosen))]


def missed(parts: Parts, steps: int) -> list[str]:
    """Return what is wrong if an optimizer that counts its steps did not take so many. A loss scale may skip one."""
    counts = {float(state["step"]) for state in parts.optimizer.state.values() if "step" in state}
    if getattr(parts.mode, "loss_scaling", None) is not None or counts <= {float(steps)}:
        return []
    return [f"its optimizer took {min(counts):g} of {steps} steps"]


def few_weights(parts: Parts) -> dict[str, Tensor]:
    """Return copies of what this rank holds of the smallest weights, FOLLOWED numbers at most."""
    sizes = sorted((weight.numel(), name) for name, weight in trained_weights(parts.plain).items())
    sums = accumulate(size for size, _ in sizes)
    names = [name for (_, name), numbers in zip(sizes, sums, strict=True) if numbers <= FOLLOWED]
    return {name: local(trained_weights(parts.plain)[name]).detach().clone() for name in names}


def misapplied(parts: Parts, before: Mapping[str, Tensor], rule: UpdateRule) -> list[str]:
    """Return in words if a step made of these weights something else than the rule does. Every rank calls this."""
    # Left out are weights of 16 bits, whose rounding is as large as a step, and those that are kept in fp8. Under a
    # loss scale a step with a gradient that is not finite must be skipped, which leaves gradients divided by it.
    found = []
    skipped = getattr(parts.mode, "loss_scaling", None) is not None and not gradients_are_finite(parts)
    for key, weight in trained_weights(parts.plain).items():
        if key not in before:
            continue
        gradient, now = gradient_of(weight), local(weight).detach()
        if weight.dtype != torch.float32 or type(now.data) is not torch.Tensor or weight.grad is None:
            continue
        began = before[key].to(now.device)
        one = began.clone()
        if not skipped:
            rule.step(key, one, gradient.to(one.dtype))
        if not norm(now - one) <= OF_CHANGE * norm(one - began) + OF_WEIGHT * norm(began):
            found.append(key)
    words = f"its optimizer makes of the gradient of {', '.join(found[:SHOWN])} something else than {rule.name} does"
    return [words] if found else []
