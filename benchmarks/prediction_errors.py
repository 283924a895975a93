"""What predictions take as their limits and errors, computed from the committed records: `make prediction-errors`.

Writes configs/prediction-errors.json, which travels with the program, and the table in docs/prediction.md.

What limits kernels follows from two kinds of pairs of records of the same work:

- One GPU each, of two types that differ only in memory (an H100 and an H200). If a kind of kernel takes T and t seconds
  on bandwidths B < b, it moves (T - t) / (1 / B - 1 / b) gigabytes, and the rest of either time is due to the SMs. The
  differences of all modes are added up, so that a long kernel counts for more than a short one, which is noise.
- One GPU and several of the same type. The time that kernels take longer on several, for each second of communication
  that they hide, is the price of hiding it.

The error is found by predicting each measured machine from another one's record. A pair that gave the limits is no test
of them, so they are fitted again without some records: without the mode's own (`mode`), or without every record of the
target's GPU type as well and, since then one type is left, without any pair at all (`GPU type`: the larger of the two).
For another architecture there is one physical ratio: an article's p4d to its p5, whose A100 no record here is of.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations
from operator import attrgetter
from pathlib import Path

from tabulate import tabulate

from fp8bench.cli.options import Unread
from fp8bench.cli.output import load_catalog
from fp8bench.predict.prediction import Source, source
from fp8bench.predict.step import (
    ATTENTION_FLOPS_A_BYTE,
    Amounts,
    Case,
    Known,
    LeftOut,
    Limits,
    Machine,
    Scale,
    Tested,
    change,
    predict,
    seconds,
)
from fp8bench.records import results
from fp8bench.records.select import select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import PREDICTION_ERRORS_JSON, ROOT
from fp8bench.schema.instance import Catalog
from fp8bench.schema.rank import Category
from fp8bench.schema.record import Record

PAGE = ROOT / "docs" / "prediction.md"
BLOCK = re.compile(r"(<!-- made by: make prediction-errors -->\n).*?(\n<!-- end -->)", re.DOTALL)
KINDS: tuple[Category, ...] = ("elementwise", "cast", "copy", "optimizer", "attention")
FOLDERS = (Path("results"), Path("evidence/machines"))
"""Records by the latest method, and those by an earlier one that they replaced: two H100s were measured by that alone.
Only records of one method are a pair.
"""
LIKE_THE_ARTICLES = ("eager", "graphed", "compiled", "compiled+graphed", "blocks", "blocks+graphed")
"""Executions, from the likeliest for a published figure: plain code, whose launches a busy GPU hides."""

Pair = tuple[Source, Source]


def sources_of(records: Sequence[Record], catalog: Catalog) -> list[Source]:
    """Return the latest profiled measurement of each work on each instance; a GPU that waited for its host is no test
    of the model, which knows nothing of hosts. records: whole, oldest first.
    """
    latest: dict[object, Source] = {}
    for measurement in sorted(select(records, every=False), key=lambda one: one.latest.created_utc):
        try:
            found = source(measurement, catalog)
        except UsageError:
            continue
        latest[work_of(found), found.record.instance] = found
    return [one for one in latest.values() if not one.work.host_bound]


def work_of(one: Source) -> tuple[object, ...]:
    """Return what two measurements of the same work have in common, machines aside."""
    record, config = one.record, one.record.config
    assert config is not None
    settings = (record.execution, str(sorted(record.fingerprint.items())), config.te_attention, config.optimizer)
    return (*named(record), *settings, config.data)


def named(record: Record) -> tuple[object, ...]:
    what = record.what
    return what.mode, what.recipe, what.workload, what.batch_size


def like(one: Source, other: Source) -> bool:
    """Return whether both are the same work on two machines."""
    return one.record.instance != other.record.instance and work_of(one) == work_of(other)


def pairs_of(sources: Iterable[Source]) -> list[Pair]:
    def order(one: Source) -> tuple[str, int]:
        return one.machine.gpu.name, one.machine.gpus

    return [(one, other) for one, other in combinations(sorted(sources, key=order), 2) if like(one, other)]


def differ_in_memory(one: Machine, other: Machine) -> bool:
    """Return whether both are one GPU with the same known SMs and peak, and different bandwidths."""
    same = ("compute_capability", "sm_count", "sm_clock_mhz", "dense_bf16_tflops")
    alike = all(getattr(one.gpu, name) == getattr(other.gpu, name) is not None for name in same)
    return alike and one.gpus == other.gpus == 1 and one.gpu.memory_bandwidth_gb_s != other.gpu.memory_bandwidth_gb_s


def fitted(pairs: Sequence[Pair]) -> Limits:
    """Return the limits that these pairs show; kinds that are in no pair are omitted."""
    memory = [pair for pair in pairs if differ_in_memory(pair[0].machine, pair[1].machine)]
    amounts = {kind: found for kind in KINDS if (found := _amounts(kind, memory)) is not None}
    longer_s = hidden_s = 0.0
    for one, other in pairs:
        if one.machine.gpu.name == other.machine.gpu.name and one.machine.gpus == 1 < other.machine.gpus:
            longer_s += _kernels_s(other) - _kernels_s(one)
            hidden_s += other.work.hidden_s
    return Limits(kinds=amounts, beside_s=max(0.0, longer_s / hidden_s) if hidden_s else 0.0)


def _kernels_s(one: Source) -> float:
    return one.work.busy_s - one.work.by_category.get("nccl", 0.0)


def _amounts(kind: Category, pairs: Iterable[Pair]) -> Amounts | None:
    """Return the amounts of all pairs together, cut off at 0 since noise can make a short kernel's negative."""
    dram_gb = sm_gcycles = 0.0
    for one, other in pairs:
        one_s, other_s = (each.work.by_category.get(kind, 0.0) for each in (one, other))
        if not one_s or not other_s:
            continue
        a_byte, other_byte = (1 / each.machine.figure("memory_bandwidth_gb_s") for each in (one, other))
        moved_gb = (one_s - other_s) / (a_byte - other_byte)
        flops_a_byte = one.work.attention_flops_a_byte if kind == "attention" else 0.0
        peak_s = moved_gb * flops_a_byte / (one.machine.figure("dense_bf16_tflops") * 1e3)
        cycles_s = one.machine.figure("sm_count") * one.machine.figure("sm_clock_mhz") / 1e3
        dram_gb += moved_gb
        sm_gcycles += (one_s - moved_gb * a_byte - peak_s) * cycles_s
    if dram_gb <= 0 and sm_gcycles <= 0:
        return None
    return Amounts(dram_gb=max(0.0, dram_gb), sm_gcycles=max(0.0, sm_gcycles))


def without(pairs: Iterable[Pair], mode: str, gpu: str = "") -> list[Pair]:
    """Return the pairs of other modes and, if one is named, of other types of GPU."""
    return [
        pair
        for pair in pairs
        if pair[0].record.what.mode != mode and gpu not in {each.machine.gpu.name for each in pair}
    ]


def tested(sources: Sequence[Source], figures: Sequence[Record], catalog: Catalog) -> Iterator[tuple[Tested, Machine]]:
    """Yield every case as a line of its own, with its target, for each way of leaving records out."""
    pairs = pairs_of(sources)
    for one, other in permutations(sources, 2):
        if not like(one, other):
            continue
        mode, gpu = one.record.what.mode, other.machine.gpu.name
        ways: list[tuple[LeftOut, list[Pair]]] = [
            ("mode", without(pairs, mode)),
            ("GPU type", without(pairs, mode, gpu)),
            ("GPU type", []),
        ]
        for left_out, used in ways:
            step_s = predict(one.work, one.machine, other.machine, fitted(used)).step_s
            case = _case(one, other.record.instance, step_s, other.work.step_s)
            yield one_case(case, one.machine, other.machine, left_out), other.machine
    for one in likest(sources):
        limits = fitted(without(pairs, one.record.what.mode))
        for first, second in combinations([each for each in figures if named(each) == named(one.record)], 2):
            if first.provenance != second.provenance or not first.summary or not second.summary:
                continue
            there = [_machine_of(each, catalog) for each in (first, second)]
            predicted = [predict(one.work, one.machine, each, limits).step_s for each in there]
            measured = first.summary.step_time_s / second.summary.step_time_s
            target = f"{first.instance} / {second.instance}"
            case = _case(one, target, predicted[0] / predicted[1], measured).model_copy(update={"what": "ratio"})
            yield one_case(case, *there, "GPU type"), there[0]


def likest(sources: Sequence[Source]) -> list[Source]:
    """Return for each instance and mode the measurement whose execution is most like that of an article's code."""
    found: dict[object, Source] = {}
    for one in sorted(sources, key=lambda one: LIKE_THE_ARTICLES.index(one.record.execution or "eager")):
        found.setdefault((one.record.instance, named(one.record)), one)
    return list(found.values())


def _machine_of(figure: Record, catalog: Catalog) -> Machine:
    return Machine(catalog.gpus[catalog.instances[figure.instance].gpu or ""], figure.what.world_size)


def _case(one: Source, target: str, predicted: float, measured: float) -> Case:
    what = one.record.what
    return Case(
        source=one.record.instance, target=target, mode=one.row.mode_label, execution=one.record.execution,
        workload=what.workload, batch_size=what.batch_size, predicted=predicted, measured=measured,
    )  # fmt: skip


def one_case(case: Case, source: Machine, target: Machine, left_out: LeftOut) -> Tested:
    gpu, scale = change(source, target)
    words = ", ".join(word for word in (gpu, scale) if word not in ("same GPU", "as many GPUs"))
    # On the logarithmic scale, twice and half are equally far off.
    value = abs(math.log1p(case.error))
    return Tested(gpu=gpu, scale=scale, left_out=left_out, value=value, cases=1, worst=(case,), basis=words)


def largest(cases: Iterable[Tested]) -> list[Tested]:
    """Return the largest error of each kind of change and way of leaving out, with the number of its cases."""
    by_change: dict[object, list[Tested]] = {}
    for each in cases:
        by_change.setdefault((each.left_out, each.gpu, each.scale), []).append(each)
    found = []
    for alike in by_change.values():
        # Two ways of leaving a GPU type out predict each case twice; the same work by two methods is two cases.
        which = attrgetter("source", "target", "mode", "execution", "workload", "batch_size", "measured")
        count = len({which(each.worst[0]) for each in alike})
        found.append(max(alike, key=lambda each: each.value).model_copy(update={"cases": count}))
    return sorted(found, key=lambda each: (each.left_out, each.gpu, each.scale))


def completed(found: Sequence[Tested]) -> list[Tested]:
    """Return the errors that predictions take. A harder change never gets a smaller error than an easier one, because
    few machines test it; the errors of two changes that nothing tests together add up.
    """
    by_change = {(each.left_out, each.gpu, each.scale): each for each in found}
    for left_out, gpu, scale in [*by_change]:
        easier = by_change.get((left_out, "same architecture", scale))
        each = by_change[left_out, gpu, scale]
        if gpu == "another architecture" and easier and easier.value > each.value:
            basis = f"{each.basis}, which one ratio alone tests ({each.worst[0].error * 100:+.1f} %)"
            update = {"value": easier.value, "cases": easier.cases, "worst": easier.worst, "basis": basis}
            by_change[left_out, gpu, scale] = each.model_copy(update=update)
    more: Scale = "another number of GPUs"
    for left_out, gpu, _ in [*by_change]:
        alone, sized = by_change.get((left_out, gpu, "as many GPUs")), by_change.get((left_out, "same GPU", more))
        if (left_out, gpu, more) not in by_change and alone and sized:
            by_change[left_out, gpu, more] = Tested(
                gpu=gpu, scale=more, left_out=left_out, value=alone.value + sized.value,
                cases=alone.cases + sized.cases, worst=alone.worst + sized.worst, basis=f"{alone.basis}, {more}",
            )  # fmt: skip
    return [*by_change.values()]


def known(cases: Sequence[tuple[Tested, Machine]], sources: Sequence[Source]) -> Known:
    """Return what predictions use."""
    pairs = pairs_of(sources)
    batches: dict[str, set[int]] = {}
    for each, _ in cases:
        # Most predictions change the number of GPUs: what is tested on one GPU alone is not tested for them.
        if each.scale == "another number of GPUs":
            batches.setdefault(each.worst[0].workload, set()).add(each.worst[0].batch_size)
    memory = [
        one.machine.gpu.name for pair in pairs for one in pair if differ_in_memory(pair[0].machine, pair[1].machine)
    ]
    return Known(
        limits=fitted(pairs),
        gpus=tuple(sorted({*memory})),
        workloads={name: tuple(sorted(of)) for name, of in sorted(batches.items())},
        most_gpus=max(machine.gpus for each, machine in cases if each.worst[0].what == "step"),
        errors=tuple(completed(largest(each for each, _ in cases))),
    )


def table(found: Iterable[Tested]) -> str:
    """Return the errors as the table of the page."""
    rows = [(one.basis, one.left_out, f"{one.share * 100:.1f} %", one.cases) for one in found]
    return tabulate(rows, ("change of", "left out", "at most", "cases"), "github")


def limits_table(found: Known, catalog: Catalog) -> str:
    """Return the share of each kind's time that memory limits, on each of the GPUs, and what hiding costs."""
    machines, rows = [Machine(catalog.gpus[name], 1) for name in found.gpus], []
    for kind, amounts in found.limits.kinds.items():
        # Attention's operations add a part that scales with the peak: 115 operations a byte over 197 tokens.
        flops_a_byte = ATTENTION_FLOPS_A_BYTE * 197 if kind == "attention" else 0.0
        needed = [(amounts.dram_gb / each.figure("memory_bandwidth_gb_s"), each) for each in machines]
        rows.append(
            (kind, *(f"{memory_s / seconds(amounts, each, flops_a_byte) * 100:.0f} %" for memory_s, each in needed))
        )
    beside = f"Kernels take {found.limits.beside_s:.2f} s longer for each second of communication that they hide."
    return f"{tabulate(rows, ('time by memory', *(f'on {name}' for name in found.gpus)), 'github')}\n\n{beside}"


def committed(folders: Sequence[Path] = FOLDERS) -> tuple[list[Record], Catalog]:
    """Return every run in the folders that can be believed, and the catalogue."""
    catalog = load_catalog(folders)
    there = results.read(folders, {*results.known_instances(folders), *catalog.instances})
    return results.sound(there, Unread(), lambda records: records), catalog


def found_in(records: Sequence[Record], catalog: Catalog) -> tuple[Known, str]:
    """Return what predictions use, and the table of the page. records: whole, of all instances, oldest first."""
    sources = sources_of(records, catalog)
    figures = [one for one in records if one.source == "published" and one.provenance and not one.provenance.derivation]
    cases = [*tested(sources, figures, catalog)]
    return known(cases, sources), table(largest(each for each, _ in cases))


def main(page: Path = PAGE, kept: Path = PREDICTION_ERRORS_JSON) -> None:
    """Write both. The records are those of the current folder."""
    records, catalog = committed()
    found, shown = found_in(records, catalog)
    kept.write_text(found.model_dump_json(indent=2) + "\n")
    page.write_text(BLOCK.sub(lambda block: f"{block[1]}{shown}{block[2]}", page.read_text()))
    print(f"{shown}\n\n{limits_table(found, catalog)}\n\nwritten: {kept}, {page}")


if __name__ == "__main__":
    main()
