"""torch.compile: torchao's float8 is nothing without it, and delayed scaling must not meet it."""

from fp8bench.doctor.ask import Failure
from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.probe_facts import CompileFacts, TransformerEngineFacts

COMPILE = Check("torch-compile", "software", "torch.compile")
DELAYED = Check("delayed-scaling-compile", "software", "delayed scaling")

WITHOUT = "without it torchao-float8 runs at about 0.36 of the baseline's speed"
REMEDY = "Install a C compiler (`apt install build-essential`) and the Triton that torch brings"
SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


def findings(facts: Facts) -> list[Finding]:
    """torch.compile; and, where Transformer Engine is, what it does to delayed scaling."""
    compiled = COMPILE.unknown(facts.why_not_probed) if facts.why_not_probed else torch_compile(facts)
    if not isinstance(facts.probed.transformer_engine, TransformerEngineFacts):
        return [compiled]
    return [
        compiled,
        DELAYED.ok(
            "under torch.compile it recompiles without end: fp8bench refuses the pair, and te modes run uncompiled"
        ),
    ]


def torch_compile(facts: Facts) -> Finding:
    """0.36: 387.7 ms a step of ViT-Huge at batch 64 on an H200, torchao tensorwise, eager; the baseline took 137.5."""
    off = [name for name in SWITCHES if facts.environ.get(name) not in (None, "", "0")]
    remedy = f"Unset {' and '.join(off)}" if off else REMEDY
    match facts.probed.compile:
        case None:
            return COMPILE.unknown("not tried")
        case Failure() as failure:
            said = failure.model_copy(update={"said": f"{failure.said} ({WITHOUT})"})
            return said.reported(COMPILE, remedy)
        case CompileFacts(graphs=0):
            return COMPILE.problem(f"it compiles nothing: {WITHOUT}", remedy)
        case CompileFacts(right=False):
            return COMPILE.problem(
                "a small function compiled on the GPU gives wrong numbers", "Install torch and its Triton afresh"
            )
        case _:
            return COMPILE.ok(f"compiles on the GPU; {WITHOUT}")
