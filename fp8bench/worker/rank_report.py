"""A rank's report, also if something stops the rank: a refusal, an error of memory or of the compiler; and the evidence
of what ran in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fp8bench.machine.identity import installed
from fp8bench.modes.protocol import Mode, stated
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid, ModeUnavailable, RunFailed, first_line, in_words
from fp8bench.schema.rank import CompileEvidence, Evidence, RankReport
from fp8bench.worker.execution.decide import Execution
from fp8bench.worker.parity import Proof
from fp8bench.worker.profiler import Profiled


@dataclass(frozen=True)
class Aside:
    """What a rank produces beside its report. progress, trace: files, None for nowhere. keep: takes what is found so
    far, which counts if the rank never reports. enough: says that only the profile is missing from what was kept.
    """

    progress: Path | None = None
    trace: Path | None = None
    keep: Callable[[RankReport], None] = lambda _so_far: None
    enough: Callable[[], None] = lambda: None

    @property
    def folder(self) -> Path | None:
        """For temporary files, which the launcher removes even if the rank is killed; None: the system's."""
        return self.progress.parent if self.progress else None


def reported(stages: Callable[[dict[str, Any]], None], rank: int, config: RunConfig, aside: Aside) -> RankReport:
    found: dict[str, Any] = {"rank": rank}
    try:
        try:
            stages(found)
        except BaseException:
            aside.keep(RankReport(**found))
            raise
    except (ModeUnavailable, MeasurementInvalid) as refusal:
        return stopped(refusal, found)
    except torch.OutOfMemoryError as error:
        raise out_of_memory(rank, config, error) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and (broken := compile_failure(config.mode_label, error)):
            raise broken from error
        # The error of torch's allocator of host memory has no class of its own.
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" not in str(error):
            raise
        said = next(iter(str(error).splitlines()), "")
        raise RunFailed(
            f"rank {rank} ran out of host memory{': ' if said else ''}{said}",
            "Lower --workers, or end other processes on this host",
            "oom",
        ) from error
    return RankReport(**found)


def stopped(error: Fp8benchError, found: dict[str, Any]) -> RankReport:
    """Return the report of a rank that an fp8bench error stopped. found: its fields so far, including `rank`."""
    what, remedy = in_words(error.what), in_words(error.remedy)
    return RankReport(**found, status=error.status, reason=what, cause=error.cause, remedy=remedy)


def out_of_memory(rank: int, config: RunConfig, error: BaseException) -> RunFailed:
    shorter = "" if config.sequence_length is None else f" or --sequence-length (now {config.sequence_length})"
    wanted = next((part for part in str(error).split(". ") if "ried to allocate" in part), str(error).split("\n")[0])
    return RunFailed(
        f"rank {rank} ran out of GPU memory at batch size {config.batch_size}: {wanted.strip().rstrip('.')}",
        f"Lower --batch-size (now {config.batch_size} a GPU){shorter}, use --activation-checkpointing full, "
        "--grad-accumulation or --parallel fsdp, or end the other processes on this GPU",
        "oom",
    )


def compile_failure(label: str, error: Exception) -> RunFailed | None:
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    compilers = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
    if not any(type(one).__module__.startswith(compilers) for one in chain):
        return None
    packages = ("torch", "transformer-engine", "torchao", "triton")
    versions = ", ".join(f"{package} {found}" for package in packages if (found := installed(package)))
    return RunFailed(
        f"torch.compile breaks {label} with {versions}: {first_line(error)}",
        "Use --compile off, or --compile blocks, or another release",
    )


_OWN_FIELDS = ("converted_layers", "total_layers", "recipe", "attention", "emulated", "warnings")
NOT_PROFILED = Profiled(None)


def to_evidence(
    mode: Mode,
    proof: Proof,
    compiled: CompileEvidence,
    execution: Execution | None = None,
    profiled: Profiled = NOT_PROFILED,
) -> Evidence:
    found, islands = mode.evidence(proof.model), stated(mode, "compile_islands")
    own = {name: found[name] for name in _OWN_FIELDS if name in found}
    if own.get("attention") is None:
        own["attention"] = "sdpa:" + "+".join(sorted(proof.kernels)) if proof.kernels else None
    warnings = list(own.pop("warnings", ()))
    if compiled.enabled and compiled.graphs == 0:
        warnings.append("torch.compile was on but compiled nothing")
    if compiled.enabled and compiled.graph_breaks and islands is not None:
        warnings.append(f"torch.compile's graph broke {compiled.graph_breaks} times: {islands}")
    gate = proof.parity.blocks
    if gate is not None and gate.tokens != gate.of_tokens:
        why = "as far as memory allows and in multiples of 16"
        warnings.append(f"the gate saw {gate.tokens:,} of the {gate.of_tokens:,} tokens of a sample, {why}")
    if profiled.warning is not None:
        warnings.append(profiled.warning)
    said, profile = own["attention"] or ":unfused", profiled.profile
    if profile and profile.device == "cuda" and not (said.endswith(":unfused") or profile.by_category.get("attention")):
        # A fallback without a warning.
        warnings.append(f"attention is said to be {said}, and the profile shows no kernel of attention")
    if execution is not None:
        own |= {name: getattr(execution, name) for name in ("join", "parallel", "graph", "executed")}
        warnings += [execution.warning] if execution.warning is not None else []
    return Evidence(
        **{"converted_layers": None, "total_layers": None, "recipe": None, **own},
        fp8=bool(stated(mode, "fp8")),
        fp8_kernels=None if profile is None else profile.has_fp8_gemm,
        compile=compiled,
        warnings=tuple(warnings),
        details={name: value for name, value in found.items() if name not in _OWN_FIELDS},
    )
