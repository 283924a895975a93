"""Turns a figure that somebody else measured into a record that says so, and judges whether it can be true.

A figure that does not fit the GPUs' peak is doubted but not refused: whoever imports it may know better.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt

from fp8bench import registry
from fp8bench.config.options import Options
from fp8bench.launch.assemble import new_run_id
from fp8bench.schema.files import made_of
from fp8bench.schema.instance import Catalog
from fp8bench.schema.option import IMPORTED_BATCH_SIZE, Option
from fp8bench.schema.record import SCHEMA_VERSION, Figure, Provenance, Record, Summary

FLOPS_PER_UNIT = {"vit-huge": 763_503_882_240}
"""FLOPs of forward and backward for one image, as torch's FlopCounterMode counts them."""

LONG_STEP_S = 30.0
LOWEST_MFU, HIGHEST_MFU = 0.005, 1.0
"""Nobody publishes a training run with a lower share, and none is faster than its arithmetic units."""

SIXTEEN_BITS_OR_MORE = ("baseline-", "te-bf16")


def _past(day: date) -> date:
    if day > date.today():
        raise ValueError("it is in the future: give the day on which the figure appeared")
    return day


def _citation(text: str) -> str:
    if text.strip().lower() in ("", "measured"):
        raise ValueError("it does not say where the figure is from: name the article or the tool")
    return text


class ImportedFigure(Options):
    """A figure. step_time_s: seconds; beyond a millionth of a second to a day is a typing mistake."""

    mode: Annotated[str, Option("Mode, with its recipe where known", metavar="MODE")]
    step_time_s: Annotated[float, Field(ge=1e-6, le=86_400), Option("Of one step", metavar="SECONDS")]
    batch_size: Annotated[PositiveInt, Option("Samples a GPU and step", limit=IMPORTED_BATCH_SIZE)]
    gpus: Annotated[int, Field(ge=1, le=1_000_000), Option("GPUs over all", metavar="N")]
    source: Annotated[
        str,
        AfterValidator(_citation),
        Option("Where the figure is from: a title, an address", metavar="TEXT"),
    ]
    published_on: Annotated[
        Annotated[date, AfterValidator(_past)] | None,
        Option("Makes it `published`, priced for that day", metavar="DATE"),
    ] = None
    derivation: Annotated[str | None, Option("How the step time follows from the source", metavar="TEXT")] = None
    workload: Annotated[str, Option("What was trained", metavar="NAME")] = "vit-huge"
    compile: Annotated[bool | None, Option("Whether torch.compile was on [unknown]")] = None
    attention: Annotated[str | None, Option("Attention implementation [unknown]", metavar="NAME")] = None


def to_record(figure: ImportedFigure, instance: str) -> Record:
    """Return the figure's record, `published` or `external`. Its fingerprint knows only the workload's name."""
    entry, _ = registry.find_mode(figure.mode)
    registry.find_workload(figure.workload)
    recipe = figure.mode.partition(":")[2] or None
    now = datetime.now(UTC)
    units = figure.batch_size * figure.gpus
    return Record(
        schema_version=SCHEMA_VERSION,
        method_version=None,
        run_id=new_run_id(f"{instance}-{figure.mode}", now),
        status="ok",
        source="published" if figure.published_on else "external",
        provenance=Provenance(citation=figure.source, published_on=figure.published_on, derivation=figure.derivation),
        created_utc=now,
        instance=instance,
        figure=made_of(Figure, figure, mode=entry.name, recipe=recipe, world_size=figure.gpus),
        fingerprint={"workload": figure.workload, "method_version": None},
        summary=Summary(
            step_time_s=figure.step_time_s,
            step_time_ci_s=None,
            unit="images",
            units_per_step=units,
            throughput_per_s=units / figure.step_time_s,
            data_wait_s=None,
            data_wait_share=None,
            host_s=None,
            flops_per_step=None,
            loss_first=None,
            loss_last=None,
        ),
    )


def doubts(figure: ImportedFigure, instance: str, catalog: Catalog) -> Iterator[str]:
    """Yield a line if the step time is doubtful: by the GPU's peak if that and the work are known, or by its length."""
    meant = f"--step-time is in seconds; {figure.step_time_s:g} ms are {figure.step_time_s / 1e3:g}"
    known, flops = catalog.instances.get(instance), FLOPS_PER_UNIT.get(figure.workload, 0)
    gpu = catalog.gpus.get(known.gpu or "") if known else None
    # Of the fastest unit that the mode may use.
    fp8 = gpu is not None and not figure.mode.startswith(SIXTEEN_BITS_OR_MORE) and gpu.dense_fp8_tflops
    peak = max(gpu.dense_bf16_tflops or 0, fp8 or 0) if gpu is not None else 0
    share = flops * figure.batch_size / figure.step_time_s / (peak * 1e12) if peak else 0.0
    if share and not LOWEST_MFU <= share <= HIGHEST_MFU:
        why = "more than it can do" if share > HIGHEST_MFU else meant
        percent = f"{share * 100:,.0f}" if share > 0.01 else f"{share * 100:.2g}"
        yield (
            f"a step of {figure.step_time_s:g} s for {figure.batch_size} images a GPU uses {percent} % of what this "
            f"instance's GPU can compute in that time: {why}"
        )
    elif figure.step_time_s > LONG_STEP_S:
        yield f"a step of {figure.step_time_s:g} s is longer than training steps are: {meant}"
