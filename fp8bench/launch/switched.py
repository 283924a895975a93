"""Makes a configuration for each requested combination of options of Transformer Engine's layer, and refuses what
cannot be combined, as far as known without torch. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fp8bench import registry
from fp8bench.entries import WorkloadEntry
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import RequestedMode
from fp8bench.schema.switches import LADDER, NONE, RUNGS, of_fp8, parse, requiring_first, split


@dataclass(frozen=True)
class Rule:
    """A condition of a switch. holds: whether a configuration may have the switch. why, remedy: said if it may not."""

    switch: str
    holds: Callable[[RunConfig], bool]
    why: str
    remedy: str


RULES = (
    Rule(
        "weight-cache",
        lambda config: config.grad_accumulation > 1,
        "weights are cast to fp8 once a step, and a step of one micro-batch casts them once anyway",
        "Add, for example, --grad-accumulation 8",
    ),
    Rule(
        "fused-wgrad",
        lambda config: config.optimizer == "none",
        "weight gradients are float32 beside the weights (main_grad), where torch's optimizers do not look",
        "Use --optimizer none",
    ),
    Rule(
        "fused-wgrad",
        lambda config: config.world_size == config.tensor_parallel and config.parallel != "fsdp",
        "neither DDP nor FSDP2 shares gradients that are kept beside the weights (main_grad)",
        "Use --gpus 1, or share the layer among all GPUs with --tensor-parallel",
    ),
    Rule(
        "fused-wgrad",
        lambda config: "parallel-setup" not in split(config.te_switches),
        "DDP waits for gradients that never come: they are kept beside the weights (main_grad)",
        "Omit one of fused-wgrad and parallel-setup",
    ),
    Rule(
        "parallel-setup",
        lambda config: config.world_size == 1 and config.parallel != "fsdp",
        "it is what sharing a layer costs on a single GPU, inside DDP",
        "Use --gpus 1; over several GPUs use --tensor-parallel",
    ),
    Rule(
        "fp8-weights",
        lambda config: config.recipe == "current",
        "weights are kept in fp8 with the scale of their own largest value alone: delayed scaling has none before the "
        "first step, and block scales cannot be made from weights on the GPU",
        "Use --mode te-fp8:current",
    ),
    Rule(
        "fp8-weights",
        lambda config: config.optimizer == "none" and config.world_size == 1 and config.parallel != "fsdp",
        "weights in fp8 alone are trained by Transformer Engine's FusedAdam with float32 masters, by which no step is "
        "proved here, sharded by FSDP2 or not",
        "Use --gpus 1 --optimizer none",
    ),
    Rule(
        "fp8-weights",
        lambda config: "weight-cache" not in split(config.te_switches),
        "there is nothing left to cast",
        "Omit weight-cache",
    ),
)


def heeds_switches(mode: str) -> bool:
    """Return whether the mode is one of Transformer Engine's."""
    entry = registry.modes().get(mode)
    return entry is not None and bool(entry.heeds_te_attention)


def words_of(configs: Iterable[RunConfig | RequestedMode]) -> tuple[str, ...]:
    """Return the `--te-switch` words that measure these again; empty if no layer has a switch."""
    # Modes without Transformer Engine's layer have no switches, and are no rung.
    found = dict.fromkeys(config.te_switches or NONE for config in configs if heeds_switches(config.mode))
    if set(found) <= {NONE}:
        return ()
    rungs = [rung or NONE for rung in RUNGS]
    if not set(rungs) <= set(found):
        return tuple(found)
    return (LADDER, *(name for name in found if name not in rungs))


def switched(configs: Sequence[RunConfig], requested: Sequence[str], workload: WorkloadEntry) -> list[RunConfig]:
    """Return one configuration for each combination of a te mode, and one for any other mode. requested: the values of
    `--te-switch`; empty for the layer as it is.

    Raises UsageError for an unknown word, a workload that does not take it, and what cannot be combined.
    """
    if not requested:
        return list(configs)
    wanted = tuple(dict.fromkeys(one for text in requested for one in parse(text)))
    climbed = LADDER in requested
    if requested != (NONE,) and not any(heeds_switches(config.mode) for config in configs):
        raise UsageError(
            f"--te-switch {requested[0]} concerns Transformer Engine's layer, which no requested mode has",
            "Add --mode te-fp8, or omit it",
        )
    found = []
    for config in configs:
        for switches in wanted if heeds_switches(config.mode) else (None,):
            made = config.model_copy(update={"te_switches": switches})
            why = refusal(made, workload)
            if why is None:
                found.append(made)
            elif not (climbed and _no_rung(made)):
                raise why
    return found


def _no_rung(config: RunConfig) -> bool:
    """Return whether a ladder skips this: fp8 for a mode without it, and the cost of sharing for a shared layer."""
    without = config.mode != "te-fp8" and bool(of_fp8(config.te_switches))
    return without or (config.tensor_parallel > 1 and config.te_switches == "parallel-setup")


def refusal(config: RunConfig, workload: WorkloadEntry) -> UsageError | None:
    """Return why the configuration cannot have its switches; None if it can, as far as known here."""
    names = requiring_first(config.te_switches)
    for name in names:
        if workload.te_switches is not None and name not in workload.te_switches:
            takes = f"{workload.name} takes {', '.join(workload.te_switches)}" if workload.te_switches else "Omit it"
            return _error(name, f"it does not apply to {workload.name!r}", f"{takes}, or use --workload gpt-layer")
    if names and config.te_attention != "te":
        return _error(names[0], "it needs Transformer Engine's own layer", "Omit --te-attention")
    fp8 = of_fp8(config.te_switches)
    if fp8 and config.mode != "te-fp8":
        return _error(fp8[0], f"it is about weights in fp8, which {config.mode} does not have", "Use --mode te-fp8")
    for rule in RULES:
        if rule.switch in names and not rule.holds(config):
            return _error(rule.switch, rule.why, rule.remedy)
    return None


def _error(name: str, why: str, remedy: str) -> UsageError:
    return UsageError(f"--te-switch {name}: {why}", remedy)
