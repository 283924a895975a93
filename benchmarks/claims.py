"""What fp8bench's sources claim, held against records: docs/claims.md.

    python benchmarks/claims.py                      # the repository's records: writes docs/claims.md
    python benchmarks/claims.py --results-dir DIR    # yours: prints the page, or writes it with --page FILE

A claim is the source's words and figure, two bounds, and a function from records to values; rows are those of
`fp8bench compare`. Another claim is another entry of CLAIMS.
"""

import argparse
import json
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal

from typer.testing import CliRunner

from fp8bench.cli.output import load_catalog
from fp8bench.cli.program import PROGRAM
from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, choose
from fp8bench.records import results
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import PUBLISHED_RESULTS, ROOT
from fp8bench.schema.record import ThroughputRecord

PAGE = ROOT / "docs" / "claims.md"
Row = dict[str, Any]
Work = tuple[str, ...]
"""A workload, with further options of `compare` that choose its rows."""
VIT: Work = ("vit-huge", "--optimizer", "sgd", "--batch-size", "64")
VIT_256: Work = ("vit-huge-256",)
LLM_1B: Work = ("llm-1b",)
LLM_7B: Work = ("llm-7b",)


@dataclass(frozen=True)
class Value:
    """A value on an instance. ends: its 95 % interval, equal if it is exact; None if it has none, and decides nothing.
    text: shown in place of the number.
    """

    instance: str
    value: float
    ends: tuple[float, float] | None
    text: str = ""


def exact(instance: str, value: float, text: str = "") -> Value:
    return Value(instance, value, (value, value), text)


class Records:
    """A folder of records, with the figures that come with fp8bench."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = load_catalog([folder])
        self.instances = sorted(results.known_instances(folder))
        self.compare = cache(self._compare)
        self.warnings: dict[str, None] = {}

    def _compare(self, *words: str) -> list[Row]:
        """Return the rows of `compare`; none where it has none, and where it refuses, which is a warning."""
        asked = ["compare", *words, "--format", "json", "--results-dir", str(self.folder)]
        done = CliRunner().invoke(PROGRAM, asked)
        self.warnings |= dict.fromkeys(done.stderr.splitlines())
        if isinstance(done.exception, UsageError):
            if not done.exception.what.startswith(("no record", "no ok record")):
                self.warnings[f"no answer to {' '.join(words)}: {done.exception.what}"] = None
            return []
        if done.exception:
            raise done.exception
        rows: list[Row] = json.loads(done.stdout)
        return rows

    def each(self, work: Work, than: str = "") -> Iterator[tuple[str, list[Row]]]:
        """Return each measured instance with its rows, compared with a mode (`than`, as in `--reference`)."""
        for instance in self.instances:
            reference = ("--reference", f"{instance}:{than}") if than else ()
            yield instance, self.compare(instance, "--workload", *work, *reference)


Of = Callable[[Records], Iterable[Value]]
Numbers = Callable[[Records], Iterable[float]]


def measured(rows: Sequence[Row], mode: str, key: str, **wanted: object) -> Row | None:
    """Return the first measured row of MODE[:RECIPE][/eager|/compiled] with a value of this key. wanted: what else it
    must have.
    """
    label, _, how = mode.partition("/")
    wanted = {"source": "measured", "status": "ok", **wanted}
    for row in rows:
        is_mode = label in (row["mode"], f"{row['mode']}:{row['recipe']}")
        if is_mode and how in ("", *str(row["execution"]).split("+")) and row[key] is not None:
            if all(row[name] == value for name, value in wanted.items()):
                return row
    return None


def eager_step(records: Records) -> Iterator[Value]:
    """Seconds that a step of bf16 takes at batch 64."""
    for instance, rows in records.each(VIT, EAGER):
        if row := measured(rows, EAGER, "step_time_s"):
            yield Value(instance, row["step_time_s"], row["step_time_ci_s"] if row["rounds"] > 1 else None)


def faster(mode: str, than: str, work: Work = VIT, **wanted: object) -> Of:
    """By how much a mode is faster than another on one instance, which is also how much more a dollar buys."""

    def of(records: Records) -> Iterator[Value]:
        for instance, rows in records.each(work, than):
            row = measured(rows, mode, "speedup_vs_reference", **wanted)
            reference = next((one for one in rows if row and one["run_id"] == row["reference_run_id"]), None)
            if row and reference and measured([reference], reference["mode"], "step_time_s", nodes=row["nodes"]):
                # One process, or elapsed times and medians that disagree, decide nothing.
                doubt = min(row["rounds"], reference["rounds"]) < 2 or "by medians" in (row["verdict_why"] or "")
                ends = None if doubt else row["speedup_ci_vs_reference"]
                yield Value(instance, row["speedup_vs_reference"] - 1, (ends[0] - 1, ends[1] - 1) if ends else None)

    return of


def p5_over_p4d(than: str, key: str) -> Of:
    """te-fp8 on p5 at batch 128 against a mode on p4d at 64, where both were measured. key: `speedup`, or `gain`
    at the prices of the day when the first article was published.
    """

    def of(records: Records) -> Iterator[Value]:
        if not {"p4d", "p5"} <= set(records.instances):
            return
        that_day = ("--price-as-of", str(ARTICLE_1_DAY), "--allow-mismatch")
        rows = records.compare("p5", "p4d", "--workload", *VIT[:-2], "--reference", f"p4d:{than}", *that_day)
        row = measured(rows, "te-fp8", f"{key}_ci_vs_reference", instance="p5", batch_size=128)
        if row and measured(rows, than, "step_time_s", is_reference=True):
            yield Value("p5", row[f"{key}_vs_reference"], row[f"{key}_ci_vs_reference"])

    return of


def memory(mode: str, than: str, work: Work = VIT) -> Of:
    """A mode's peak of memory over another's, minus 1."""

    def of(records: Records) -> Iterator[Value]:
        for instance, rows in records.each(work, than):
            one, other = (measured(rows, name, "peak_memory_bytes") for name in (mode, than))
            if one and other:
                yield exact(instance, one["peak_memory_bytes"] / other["peak_memory_bytes"] - 1)

    return of


def own_block(records: Records) -> Iterable[Value]:
    """Whether te.TransformerLayer with its defaults, as the first article uses it, computes what timm's block does."""
    found: dict[str, Value] = {}
    for record, _ in results.read(records.folder, records.instances):
        if record.what.mode == "te-bf16-article" and record.status in ("ok", "invalid"):
            found[record.instance] = exact(record.instance, float(record.status == "ok"))
    return found.values()


def layer_error(inputs: str) -> Of:
    """The relative error of te-fp8's linear layer, from the latest record of `fp8bench numerics`."""

    def of(records: Records) -> Iterator[Value]:
        for instance in records.instances:
            for record in records.compare(instance, "--kind", "numerics")[-1:]:
                for row in record["rows"]:
                    wanted = ("te-fp8:delayed", "linear", "output", inputs)
                    if (row["mode"], row["layer"], row["tensor"], row["input"]) == wanted and row["relative_error"]:
                        yield exact(instance, row["relative_error"])

    return of


def price(instance: str) -> Of:
    """The price of the day when the first article was published, with today's beside it."""

    def of(records: Records) -> Iterator[Value]:
        queries = PriceQuery(ARTICLE_1_DAY, False, machine=ANY_MACHINE), PriceQuery(date.today(), True)
        then, now = (choose(records.catalog.instances[instance].prices, query) for query in queries)
        if then and then.usd_per_hour and now and now.usd_per_hour:
            both = f"{then.usd_per_hour:.2f} then, {now.usd_per_hour:.2f} on {now.as_of}"
            yield exact(instance, then.usd_per_hour, both)

    return of


def by_torch(formats: Sequence[str], *numbers: float) -> Numbers:
    """What torch makes of each number in each format; without any their largest and smallest normal value, and eps."""

    def of(_: Records) -> list[float]:
        import torch

        kinds = [getattr(torch, name) for name in formats]
        if not numbers:
            return [getattr(torch.finfo(kind), what) for kind in kinds for what in ("max", "smallest_normal", "eps")]
        return [float(torch.tensor(number).to(kind)) for kind in kinds for number in numbers]

    return of


def by_tokens(workload: str, divisor: str = "baseline-bf16") -> Numbers:
    """The study's tokens/s with FP8 minus those without, in percent of one of them, for 1, 2, 4, ... 32 nodes."""

    def of(records: Records) -> Iterator[float]:
        found = [one for one in results.read_kind(records.folder, ["p5"], ThroughputRecord) if one.workload == workload]
        rates = {one.mode: [point.units_per_s_per_gpu for point in one.points] for one in found}
        for fp8, bf16, base in zip(rates["te-fp8"], rates["baseline-bf16"], rates[divisor], strict=True):
            yield 100 * (fp8 - bf16) / base

    return of


def p5_worse(_: Records) -> Iterator[Value]:
    """What a dollar buys on p5 over p4d, minus 1, by the first article's own steps and prices."""
    own = Records(PUBLISHED_RESULTS)
    for row in own.compare("p5", "p4d", "--reference", "p4d:baseline-bf16", "--price-as-of", str(ARTICLE_1_DAY)):
        if (row["instance"], row["mode"], row["batch_size"]) == ("p5", "baseline-bf16", 64):
            yield exact("", row["gain_vs_reference"])


Kind = Literal["measured", "definition", "price", "arithmetic"]
KINDS: dict[Kind, tuple[str, str, str]] = {
    "measured": ("Measured claims", "reproduced", "not reproduced"),
    "price": ("Prices, on the day when they were said", "true then", "not true then"),
    "arithmetic": ("Figures that follow from others of the same source", "right", "wrong"),
    "definition": ("Definitions of number formats", "true", "false"),
}
"""What a kind is called, and what is said of a claim that holds, and of one that does not."""
UNDECIDED, UNMEASURED = "inconclusive", "not measured"


@dataclass(frozen=True)
class Source:
    """unlike: how records differ from what was measured there, whatever they say. command: what measures the rest."""

    title: str
    unlike: str
    command: str


@dataclass(frozen=True)
class Claim:
    """words, published: the source's own. low, high: it holds if a value's whole interval is within, and not if all of
    it is beyond. where: the instance or GPU that decides, "" for any; values of others are context.
    """

    source: str
    words: str
    published: str
    of: Of
    low: float
    high: float
    where: str = ""
    unit: Literal["%", "ms", "x", "yes/no", ""] = "%"
    kind: Kind = "measured"


@dataclass(frozen=True)
class Judged:
    """A claim with its values where the source measured, and elsewhere."""

    claim: Claim
    deciding: tuple[Value, ...]
    context: tuple[Value, ...] = ()

    @property
    def verdict(self) -> str:
        """The verdict of all deciding values; inconclusive if they disagree, so that a claim counts once."""
        found = {self._of(value) for value in self.deciding} or {UNMEASURED}
        return found.pop() if len(found) == 1 else UNDECIDED

    def _of(self, value: Value) -> str:
        (low, high), (_, holds, fails) = value.ends or (-math.inf, math.inf), KINDS[self.claim.kind]
        if self.claim.low <= low and high <= self.claim.high:
            return holds
        return fails if high < self.claim.low or self.claim.high < low else UNDECIDED


def judge(claim: Claim, records: Records) -> Judged:
    at: dict[bool, list[Value]] = {True: [], False: []}
    for value in claim.of(records):
        known = records.catalog.instances.get(value.instance)
        gpu = known.gpu.split("-")[0] if known and known.gpu else None
        at[claim.where in ("", value.instance, gpu)].append(value)
    # What a claim about one instance would be on another GPU says nothing of it.
    return Judged(claim, tuple(at[True]), () if claim.where in ("p4d", "p5") else tuple(at[False]))


ARTICLE_1_DAY = date(2023, 11, 15)
SOURCES = {
    "article 1": Source(
        f"Accelerating PyTorch Training Workloads with FP8 ({ARTICLE_1_DAY})",
        "There: ViT-Huge, 8 GPUs, eager, batch 64 or more, a TE block that attends across the batch. Records:\n"
        "batch 64, a TE block that computes ViT, executed as is best.",
        "fp8bench run --config configs/presets/article-1.yaml",
    ),
    "article 2": Source(
        "PyTorch Native FP8 Data Types (2024-05-21)",
        "There: ViT-Huge at 256 px, one L4, batch 32 in FP8 and 16 without, float8_experimental, te.Linear alone.\n"
        "Records: torchao, TE's whole blocks, each executed as is best where nothing else is said.",
        "fp8bench run --config configs/presets/article-2.yaml",
    ),
    "tutorials": Source(
        "Transformer Engine's tutorials on FP8",
        "There: 36 printed numbers of one layer. Records: all numbers of another.",
        "fp8bench numerics --mode te-fp8` and `fp8bench run --mode te-fp8:current --mode te-fp8:delayed",
    ),
    "study": Source(
        "How FP8 boosts LLM training by 18% on Amazon SageMaker P5 instances (2024-11-20)",
        "There: 8 H100s a node, te.Linear alone, batch not published. Records: TE's whole layers, executed as is\n"
        "best, on any number of GPUs a node.",
        "fp8bench run --workload llm-7b --mode te-fp8 --mode baseline-bf16",
    ),
}
BF16, EAGER, TE_BF16 = "baseline-bf16", "baseline-bf16/eager", "te-bf16"
FP8, EAGER_FP8 = "te-fp8:delayed", "te-fp8:delayed/eager"
NATIVE, COMPILED, EAGER_NATIVE = "torchao-float8", "torchao-float8/compiled", "torchao-float8/eager"
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
FORMATS, BITS = ("float16", "bfloat16", E4M3, E5M2), (0.395264, 0.394531, 0.40625, 0.375)
X = (2.073093891143, -0.78251332044, -0.47084918620, -1.32557279110)
ON_1B, ON_7B = (1.49, 8.05, 6.32, 9.42, 11.26, 13.43), (15, 12.56, 12.26, 11.06, 13.86, 18.56)


def listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:.6g}" for number in numbers)


def exactly(source: str, words: str, numbers: Sequence[float], kind: Kind, found: Numbers, within: float = 0) -> Claim:
    """Return a claim of printed numbers that follow from definitions or from others of the source. Its value is how
    many do not; within: how far they may differ.
    """

    def of(records: Records) -> Iterator[Value]:
        real = list(found(records))
        pairs = zip(real, numbers, strict=True)
        wrong = sum(not math.isclose(one, other, rel_tol=1e-5, abs_tol=within) for one, other in pairs)
        yield exact("", wrong, listed(round(number, 2) if within else number for number in real))

    return Claim(source, words, listed(numbers), of, 0, 0, kind=kind)


CLAIMS = (
    Claim("article 1", "p4d costs 32.77 USD an hour", "32.77", price("p4d"), 32.76, 32.78, unit="", kind="price"),
    Claim("article 1", "p5 costs 98.32 USD an hour", "98.32", price("p5"), 98.31, 98.33, unit="", kind="price"),
    Claim("article 1", "p5's price-performance is ~30 % worse", "-30 %", p5_worse, -0.35, -0.25, kind="arithmetic"),
    Claim("article 1", "a step takes 0.41 s on p4d", "410 ms", eager_step, 0.39, 0.43, "p4d", "ms"),
    Claim("article 1", "and 0.199 s on p5", "199 ms", eager_step, 0.189, 0.209, "p5", "ms"),
    Claim("article 1", "TE's block gives ~19 % on p4d", "+19 %", faster(TE_BF16, EAGER), 0.14, 0.24, "p4d"),
    Claim("article 1", "TE's block gives ~32 % on p5", "+32 %", faster(TE_BF16, EAGER), 0.27, 0.37, "H100"),
    Claim("article 1", "FP8 gives another ~20 %", "+20 %", faster(FP8, TE_BF16), 0.15, 0.25, "H100"),
    Claim("article 1", "FP8 reduces memory", "in words", memory(FP8, TE_BF16), -0.5, -0.001, "H100"),
    Claim("article 1", "p5 then beats p4d by ~2 %", "+2 %", p5_over_p4d(TE_BF16, "gain"), 0.01, 0.03, "p5"),
    Claim("article 1", "and trains 3 times as fast", "3x", p5_over_p4d(TE_BF16, "speedup"), 2.8, 3.2, "p5", "x"),
    Claim("article 1", "TE's layer with its defaults is timm's block", "in words", own_block, 1, 1, unit="yes/no"),
    Claim("article 2", "compiled native FP8 gives 47 %", "+47 %", faster(COMPILED, BF16, VIT_256), 0.42, 0.52, "L4"),
    Claim("article 2", "compiled native FP8 is best, before TE", "in words", faster(COMPILED, FP8, VIT_256), 0, 1),
    Claim("article 2", "uncompiled, TE's is much better", "in words", faster(EAGER_FP8, EAGER_NATIVE, VIT_256), 0.1, 2),
    Claim("article 2", "FP8 frees memory", "in words", memory(NATIVE, BF16, VIT_256), -0.5, -0.001),
    exactly("article 2", "e4m3: largest, smallest normal, eps", (448, 0.015625, 0.125), "definition", by_torch([E4M3])),
    exactly("article 2", "e5m2: the same", (57344, 6.10352e-05, 0.25), "definition", by_torch([E5M2])),
    exactly("article 2", f"{listed(X)} in e4m3", (2, -0.8125, -0.46875, -1.375), "definition", by_torch([E4M3], *X)),
    exactly("article 2", "the same in e5m2", (2, -0.75, -0.5, -1.25), "definition", by_torch([E5M2], *X)),
    exactly("tutorials", "0.3952 in float16, bfloat16, e4m3, e5m2", BITS, "definition", by_torch(FORMATS, 0.3952)),
    Claim("tutorials", "a linear layer's output is close to FP32's", "2.8 % off", layer_error("normal"), 0.01, 0.05),
    Claim("tutorials", "with exact inputs really close", "in words", layer_error("normal-exact"), 0, 0.002),
    Claim("tutorials", "just-in-time scaling costs time", "in words", faster("te-fp8:current", FP8), -0.3, 0),
    Claim("study", "1B on 1 node: 1.49 %", "+1.49 %", faster(FP8, BF16, LLM_1B, nodes=1), 0.005, 0.03, "H100"),
    Claim("study", "7B on 1 node: 15 %", "+15 %", faster(FP8, BF16, LLM_7B, nodes=1), 0.14, 0.19, "H100"),
    Claim("study", "1B on 32: 13 %", "+13.43 %", faster(FP8, BF16, LLM_1B, nodes=32), 0.12, 0.15, "p5"),
    Claim("study", "7B on 32: 18 %", "+18.56 %", faster(FP8, BF16, LLM_7B, nodes=32), 0.17, 0.24, "p5"),
    exactly("study", "1B on 1, 2, 4, ... 32 nodes, %", ON_1B, "arithmetic", by_tokens("llm-1b"), 0.02),
    exactly("study", "7B on the same, %", ON_7B, "arithmetic", by_tokens("llm-7b"), 0.02),
)


def written(number: float, unit: str) -> str:
    if unit == "yes/no":
        return "yes" if number else "no"
    return {"%": f"{100 * number:+.3g}", "ms": f"{1e3 * number:.4g}"}.get(unit, f"{number:.4g}")


def said(value: Value, unit: str) -> str:
    low, high = (written(end, unit) for end in value.ends or (0, 0))
    interval = f" ({low} to {high})" if low != high else ""
    return value.text or f"{value.instance} {written(value.value, unit)}{interval}".strip()


def table(judged: Sequence[Judged], here: str) -> Iterator[str]:
    """Return the lines of a table, with a claim's bounds beside what was published, and below it the claims of which
    nothing was measured. Values elsewhere are shown where none decides. here: heading of the values.
    """
    yield from (f"| claim | published (within) | {here} | verdict |", "|---|---|---|---|")
    for one in judged:
        claim, unit = one.claim, one.claim.unit
        low, high = written(claim.low, unit), written(claim.high, unit)
        within = f" ({low} to {high})" if low != high else ""
        values = "; ".join(said(value, unit) for value in one.deciding or one.context)
        if values:
            beside = "" if one.deciding else "elsewhere "
            yield f"| {claim.words} | {claim.published}{within} | {beside}{values} | {one.verdict} |"
    if without := [one.claim.words for one in judged if not (one.deciding or one.context)]:
        yield from ("", *textwrap.wrap(f"Not measured: {'; '.join(without)}.", 120))


def in_brief(judged: Judged) -> str:
    """Return the words of a claim that holds, with what was found if that is not exactly what was published."""
    found = "; ".join(said(value, judged.claim.unit) for value in judged.deciding)
    return judged.claim.words if found == judged.claim.published else f"{judged.claim.words} ({found})"


def page(records: Records) -> str:
    """Return docs/claims.md of these records."""
    judged = [judge(claim, records) for claim in CLAIMS]
    of_kind = {kind: [one for one in judged if one.claim.kind == kind] for kind in KINDS}
    lines = [INTRODUCTION.format(folder=records.folder.name)]
    for kind, (name, *verdicts) in KINDS.items():
        counts = Counter(one.verdict for one in of_kind[kind])
        found = (f"{counts[verdict]} {verdict}" for verdict in (*verdicts, UNDECIDED, UNMEASURED) if counts[verdict])
        lines.append(f"- {name}: {', '.join(found)}")
    for key, source in SOURCES.items():
        lines += ["", f"## {source.title}", "", f"{source.unlike} Measured by `{source.command}`.", ""]
        lines += table([one for one in of_kind["measured"] if one.claim.source == key], "here (95 %)")
    for kind, note in NOTES.items():
        title, holds, _ = KINDS[kind]
        lines += ["", f"## {title}", "", note]
        right = [one for one in of_kind[kind] if one.verdict == holds]
        if right:
            lines += ["", *textwrap.wrap(f"{holds.capitalize()}: {'; '.join(map(in_brief, right))}.", 120)]
        if others := [one for one in of_kind[kind] if one not in right]:
            lines += ["", *table(others, "found")]
    return "\n".join(lines) + "\n"


INTRODUCTION = """# Claims

What fp8bench's sources say, in their own figures, against the records in `{folder}/`.
`python benchmarks/claims.py --results-dir DIR` prints the same for your records.

A claim is reproduced if the whole 95 % interval lies within bounds on both sides of the published figure, not
reproduced if all of it lies beyond, else inconclusive. Only the source's own instance or GPU decides; where it was not
measured, values elsewhere are context. Inference, SageMaker and Gaudi are out of scope.
"""
NOTES: dict[Kind, str] = {
    "price": "Beside them the newest ones of the catalogue.",
    "arithmetic": "The study's percentages for 7B divide by its tokens/s *with* FP8, so they are too small: its\n"
    "title's 18 %, 18.56 on 32 nodes, is 22.78 by its rates.",
    "definition": "Computed by torch; for scaling by blocks see [formats](numerics.md).",
}


def main() -> None:
    """Write or print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results-dir", type=Path, default=ROOT / "results", metavar="DIR")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="default: docs/claims.md for the repository's records"
    )
    chosen = parser.parse_args()
    own = chosen.results_dir.resolve() == (ROOT / "results").resolve()
    records = Records(chosen.results_dir)
    text = page(records)
    print(*records.warnings, sep="\n", end="\n" if records.warnings else "", file=sys.stderr)
    if target := chosen.page or (PAGE if own else None):
        target.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
