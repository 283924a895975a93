"""bf16, fp8, and Transformer Engine's fp8 recipes."""

from fp8bench.doctor.ask import Failure
from fp8bench.doctor.facts import LEFT_OUT, Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.probe_facts import PrecisionFacts, TransformerEngineFacts

BF16 = Check("bf16", "gpu", "bf16")
FP8 = Check("fp8", "gpu", "fp8")
RECIPES = Check("te-fp8-recipes", "software", "te-fp8 recipes")

BF16_UNITS = (8, 0)
FP8_UNITS = (8, 9)
SMI = "Reinstall torch for this GPU and driver, and run `nvidia-smi -q` to see whether the GPU is sound"
ELSEWHERE = "Measure baseline-bf16 and te-bf16 here, and fp8 on an L4, L40S, H100 or newer"


def findings(facts: Facts) -> list[Finding]:
    """bf16, fp8 and the recipes."""
    if facts.driver.why_no_gpu:
        return [check.unknown(facts.driver.why_no_gpu) for check in (BF16, FP8, RECIPES)]
    told = [gpu.capability for gpu in facts.driver.gpus if gpu.capability is not None]
    capability = min(told, default=None)
    answer = facts.probed.precision
    if capability is None and isinstance(answer, PrecisionFacts):
        capability = answer.capability
    return [bf16(capability, answer), fp8(capability, answer), recipes(facts)]


def bf16(capability: tuple[int, int] | None, answer: PrecisionFacts | Failure | None) -> Finding:
    """capability: the least of all GPUs."""
    if capability is None:
        return BF16.unknown("the GPU's compute capability is not told")
    text = f"compute capability {_dotted(capability)}"
    if capability < BF16_UNITS:
        return BF16.problem(f"{text}, and bf16 units need {_dotted(BF16_UNITS)}", "Measure on an A100 or newer")
    if not isinstance(answer, PrecisionFacts):
        return _unproven(BF16, text, answer)
    if answer.bf16_error:
        return BF16.problem(f"{text}; a small product failed: {answer.bf16_error}", SMI)
    return BF16.ok(f"{text}; a small product runs and is right")


def fp8(capability: tuple[int, int] | None, answer: PrecisionFacts | Failure | None) -> Finding:
    """A GPU without fp8 units is fit to be measured in bf16: a warning."""
    if capability is None:
        return FP8.unknown("the GPU's compute capability is not told")
    text = f"compute capability {_dotted(capability)}"
    if capability < FP8_UNITS:
        return FP8.warning(f"{text}, and fp8 units need {_dotted(FP8_UNITS)}", ELSEWHERE)
    if not isinstance(answer, PrecisionFacts):
        return _unproven(FP8, text, answer)
    if answer.fp8_error:
        return FP8.problem(f"{text}; torch._scaled_mm failed: {answer.fp8_error}", SMI)
    return FP8.ok(f"{text}; torch._scaled_mm runs and is right")


def _unproven(check: Check, text: str, answer: Failure | None) -> Finding:
    if answer is None:
        return check.unknown(f"{text} has it; whether a product runs was {LEFT_OUT}")
    said = answer.model_copy(update={"said": f"{text}; a small product: {answer.said}"})
    return said.reported(check, SMI)


def recipes(facts: Facts) -> Finding:
    """As Transformer Engine states them, and one linear layer in fp8."""
    match facts.probed.transformer_engine:
        case None:
            return RECIPES.unknown(LEFT_OUT if facts.quick else "Transformer Engine is not installed")
        case Failure():
            return RECIPES.unknown("Transformer Engine does not import")
        case found:
            return _recipes(found)


def _recipes(found: TransformerEngineFacts) -> Finding:
    if not found.recipes:
        return RECIPES.unknown("Transformer Engine saw no GPU")
    missing: dict[str, list[str]] = {}
    for recipe in found.recipes:
        if not recipe.available:
            missing.setdefault(recipe.reason.rstrip(". "), []).append(recipe.name)
    there = ", ".join(recipe.name for recipe in found.recipes if recipe.available)
    text = "; ".join([*filter(None, [there]), *(f"not {', '.join(n)}: {why}" for why, n in missing.items())])
    if found.linear_error:
        return RECIPES.problem(
            f"a te.Linear in fp8 failed: {found.linear_error}",
            "Install the Transformer Engine that was built for this torch and CUDA, and see that one cuBLAS is loaded",
        )
    if not any(recipe.available for recipe in found.recipes):
        return RECIPES.warning(text, ELSEWHERE)
    return RECIPES.ok(text)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
