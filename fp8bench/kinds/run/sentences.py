"""The answer in sentences: which mode, which instance, and what could change it; and how the figures were made."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import permutations

from fp8bench import __version__
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import WHAT_IF
from fp8bench.kinds.run.answer import Answer, Comparison, OfMode, Pair
from fp8bench.kinds.run.columns import price_told
from fp8bench.kinds.run.compare import unlike_work
from fp8bench.kinds.run.row import Row
from fp8bench.records.select import grouped
from fp8bench.schema.execution import suffix

METHOD = """\
Of each measured row, the mode was first proved to compute what the plain model does: block by block, and again in the
steps as they were executed. Steps were then timed in fresh processes, the modes in alternating order: a step is elapsed
time over steps, after warm-up, on the slowest rank. An interval holds the mean of all processes with 95 % (Student's t
on the logarithms of the processes' means). A difference is called certain if its whole interval lies beyond 1 %, or
beyond 4 % between machines. Units per USD are units an hour over the price of an hour."""


BASELINE = "baseline-bf16"

FORECAST = "with --dry-run here: time, cost, and whether it fits"
"""Where a sentence asks for a run: it has no forecast of its own."""

ARTICLES_BLOCK = "the article's own TransformerLayer block"
"""In a derivation. It attends across the images of a batch, so that it does not compute what the model does."""


def sentences(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each question that the answer has something to say of."""
    answer = comparison.answer
    if answer.modes:
        yield f"Which mode? {'; '.join(_of_modes(answer.modes))}."
    elif where := dict.fromkeys(row.measured_on for row in comparison.rows if row.measured_on):
        yield f"Which mode? That is decided where it was measured: {', '.join(filter(None, where))}."
    elif not answer.pairs and comparison.rows and not comparison.name:
        yield f"Which mode? Not decided: {_undecided(comparison.rows)}."
    # Most training loops have no CUDA graph.
    depends = [of.in_python for of in answer.modes if of.needs_graph and of.pair.decided and of.pair.gain > 0]
    if depends:
        told = "; ".join(map(_in_python, filter(None, depends))) or "not measured (fp8bench run --cuda-graphs off)"
        yield f"It needs the whole step replayed as one CUDA graph; launched from Python: {told}."
    if answer.told:
        by = ", ".join(f"{name} {factor:.2f}x" for name, factor in answer.factors.items())
        decides = [f"What decides, at most: {by}."] if by else []
        first, *others = _of_instances(answer)
        yield f"Which instance? {' '.join([*decides, first])}"
        yield from others
        paid = [row for pair in answer.told for row in (pair.row, pair.reference) if row.usd_per_hour]
        if paid:
            each = dict.fromkeys(f"{row.instance} {row.usd_per_hour:,.2f} USD ({price_told(row)})" for row in paid)
            yield f"Prices an hour: {', '.join(each)}."
    if comparison.published is not None and comparison.published[1].pairs:
        day, then = comparison.published
        yield f"At the prices of {day}, as published: {' '.join(_of_instances(then, brief=True))}"
    if answer.missing:
        names, size = [name for name, _ in answer.missing], answer.missing[0][1]
        run = f"fp8bench run --instance {names[0] if len(names) == 1 else 'NAME'} --batch-size {size}"
        yield f"What could change it: {', '.join(names)} at batch {size} ({run} there; {FORECAST})."


def _in_python(pair: Pair) -> str:
    row, base = pair.row, pair.reference.short_label
    outcome = f"{_more(pair)} than {base}" if pair.decided else f"not told apart from {base}"
    return f"{row.short_label} takes {(row.step_time_s or 0) * 1e3:.0f} ms {_where(pair)}, {outcome}"


def _undecided(rows: Sequence[Row]) -> str:
    ran = [row for row in rows if row.status == "ok"]
    own = [row for row in ran if not row.emulated]
    unlike = dict.fromkeys(
        name
        for base, row in permutations(own, 2)
        if base.mode == BASELINE
        and (base.instance, base.batch_size, base.machine) == (row.instance, row.batch_size, row.machine)
        for name in unlike_work(row.latest.fingerprint, base.latest.fingerprint)
    )
    of_other_work = f"{BASELINE} is of other work than the rows beside it ({', '.join(unlike)})"
    reasons = (
        (not ran, "no row is a valid measurement"),
        (not own, "every row is an emulation, whose time is not that of fp8"),
        (len(ran) == 1, "there is no other row to compare it with"),
        (len(own) == 1, "the other rows are emulations, whose time is not that of fp8; run it on a GPU with fp8 units"),
        (all(row.device == "cpu" for row in own), "every row ran on a CPU, whose speed does not predict a GPU's"),
        (bool(unlike), f"{of_other_work}: measure both with the same settings and version of fp8bench"),
    )
    none = f"no row has a {BASELINE} of its instance, batch size and machine beside it; run it with the same options"
    return next((text for holds, text in reasons if holds), none)


def as_json(comparison: Comparison) -> dict[str, object]:
    """Return the answer's numbers, with the sentences that are made of them. Null: several workloads or batch sizes."""
    answer, dated = comparison.answer, comparison.published
    pairs = [*(of.pair for of in answer.modes), *answer.pairs]

    def one_of(values: Iterable[object]) -> object:
        first, *others = {*values} or {None}
        return None if others else first

    return {
        **({"name": comparison.name} if comparison.name else {}),
        "workload": one_of(row.workload for row in comparison.rows),
        "batch_size": one_of(pair.row.batch_size for pair in pairs),
        "sentences": list(sentences(comparison)),
        **_numbers_of(answer),
        "as_published": dated and {"price_as_of": str(dated[0]), **_numbers_of(dated[1])},
    }


def _numbers_of(answer: Answer) -> dict[str, object]:
    return {
        "mode": {
            "pairs": [
                {
                    **_numbers(of.pair),
                    "on_machines": [_numbers(pair) for pair in of.on_machines],
                    "equal": [_numbers(pair) for pair in of.equal],
                    "over_another": None if of.over_another is None else _numbers(of.over_another),
                    "needs_cuda_graph": of.needs_graph,
                    "launched_from_python": None if of.in_python is None else _numbers(of.in_python),
                }
                for of in answer.modes
            ]
        },
        "instance": {
            "best": answer.best,
            "factors": answer.factors,
            "pairs": [_numbers(pair) for pair in answer.pairs],
            "opposite_at_other_batches": [_numbers(pair) for pair in answer.opposite],
            "each_at_its_best_batch": [_numbers(pair) for pair in answer.at_best],
        },
        "missing": [{"instance": name, "batch_size": size} for name, size in answer.missing],
    }


def _numbers(pair: Pair) -> dict[str, object]:
    row = pair.row
    names = "instance mode recipe te_switches execution batch_size world_size source machine machines run_id".split()
    return {
        **{name: getattr(row, name) for name in names},
        "against": {name: getattr(pair.reference, name) for name in names},
        "gain": pair.gain,
        "gain_ci": pair.gain_ci,
        "gain_on": "units_per_usd" if pair.by_value else "throughput",
        "verdict": row.verdict,
        "speedup": row.speedup_vs_reference,
        "price_ratio": pair.price_ratio,
        "not_decided": None if pair.unsure is None else _numbers(pair.unsure),
        "at_other_providers": None if pair.elsewhere is None else asdict(pair.elsewhere),
    }


def _of_modes(modes: Sequence[OfMode]) -> Iterator[str]:
    """Yield a clause for each mode that is best somewhere, and one for each instance where the base is."""
    gains: dict[tuple[str, str, str], list[OfMode]] = {}
    for of in modes:
        pair, row, base = of.pair, of.pair.row, of.pair.reference.short_label
        # Beside predicted rows there is another baseline.
        if pair.origin != "measured":
            base = f"{pair.reference.origin} {base}"
        if pair.decided and pair.gain > 0:
            gains.setdefault((row.short_label, base, pair.origin), []).append(of)
        else:
            outcome = _more(pair) if pair.decided else f"not told apart, {_interval(pair)}"
            more = "" if of.over_another is None else f"; {_hidden(of.over_another)}"
            yield f"{base} {_where(pair)}; {row.short_label} there: {outcome}{_machines(of)}{more}{_origin(pair)}"
    for (mode, base, _), (first, *others) in gains.items():
        of_first = f"{_more(first.pair)} than the best {base} {_where(first.pair)}{_machines(first)}{_rivals(first)}"
        rest = "".join(f", {_percent(of.pair)} {_where(of.pair)}{_machines(of)}{_rivals(of)}" for of in others)
        yield f"{mode}: {of_first}{rest}{_origin(first.pair)}"


def _hidden(pair: Pair) -> str:
    row, base = pair.row, f"{pair.reference.short_label}{suffix(pair.reference.execution)}"
    return f"{row.short_label}: {_more(pair)} than {base}, which is not told from the best{_unsure(pair)}"


def _rivals(of: OfMode) -> str:
    """Return which rows may be as good as the best: those that are not told from it, and one of too few processes."""
    equal = "".join(f"; equal within the range: {one.row.short_label}, {_interval(one)}" for one in of.equal)
    return f"{equal}{_unsure(of.pair)}"


def _unsure(pair: Pair) -> str:
    if (one := pair.unsure) is None:
        return ""
    left = one.processes_left
    decide = f"{left} more {'process' if left == 1 else 'processes'} of each" if left else "more rounds"
    return f"; {one.row.short_label} may be better: {_interval(one)}, not decided, {decide} may tell"


def _machines(of: OfMode) -> str:
    each = [pair.gain * 100 for pair in of.on_machines]
    if len(each) < 2:
        return ""
    disagree = " disagree" if len({pair.gain > 0 for pair in of.on_machines if pair.decided}) > 1 else ""
    return f" (its {len(each)} machines{disagree}: {each[0]:.1f} to {each[-1]:.1f} %)"


def _of_instances(answer: Answer, brief: bool = False) -> Iterator[str]:
    met = {pair.instances for pair in answer.pairs}
    names = {name for both in met for name in both}
    if len(names) > 2 and len(met) == math.comb(len(names), 2):
        unsure = any(pair.provider_decides for pair in answer.told if pair.row.instance == answer.best)
        wins = "is first at these prices, but the provider decides" if unsure else "wins against each of the others"
        yield f"{answer.best or 'None'} {wins}."
    for pair in answer.told:
        if len(names) == 2 or answer.best in (None, pair.row.instance):
            alike = pair.instances, pair.row.timed
            turned = [one for one in answer.opposite if (one.instances, one.row.timed) == alike]
            opposite = (f"; at batch {one.row.batch_size} {one.row.instance}: {_more(one)}" for one in turned)
            yield f"{_of_pair(pair, brief)}{''.join(opposite)}."
    for pair in answer.at_best:
        one, other = (f"{row.instance} ({row.short_label}, {row.batch_size})" for row in (pair.row, pair.reference))
        apart = f"{one} and {other} are not told apart: {_interval(pair)}"
        outcome = f"{one}: {_more(pair)} than {other}" if pair.decided else apart
        yield f"Each at its best batch, {outcome}{_origin(pair)}."


def _means(pair: Pair) -> str:
    several = [f"{row.machines} machines of {row.instance}" for row in (pair.row, pair.reference) if row.machines > 1]
    return f", by the mean of {' and '.join(several)}" if several else ""


def _of_pair(pair: Pair, brief: bool) -> str:
    """Return what the better row gains over the other and why. brief: whether without what could change it."""
    row, other = pair.row, pair.reference
    modes = " and ".join(dict.fromkeys((row.short_label, other.short_label)))
    how = f"{_at(pair)} with {modes}{'' if pair.origin == 'measured' else f', {pair.origin}'}{_means(pair)}"
    if not pair.decided:
        said = f"{row.instance} and {other.instance} are not told apart {how}: {_interval(pair)}"
        # Measuring where nothing was measured decides.
        if one := next((one for one in (row, other) if one.measured_on), None):
            mode, _, switches = one.short_label.partition("+")
            asked = f"--instance {one.instance} --mode {mode}{f' --te-switch {switches}' if switches else ''}"
            said += f"; fp8bench run {asked} --batch-size {one.batch_size} there decides ({FORECAST})"
        return said
    speedup, paid, found = row.speedup_vs_reference or 1.0, pair.price_ratio, pair.elsewhere if pair.by_value else None
    # How much of the gain is speed and how much is price.
    factors = f"{speedup:.2f}x its speed at {paid:.2f}x its price; " if pair.by_value and paid else ""
    loss = f"{factors}{other.instance} against it: {-pair.gain / (1 + pair.gain) * 100:.1f} %"
    said = f"{row.instance}: {_more(pair)} than {other.instance} {how} ({loss}){_unsure(pair)}"
    if brief:
        return said
    if pair.by_value:
        said += f", while {other.instance} costs more than {1 / speedup:.2f} times as much as {row.instance}"
    if found and found.least == found.most:
        return f"{said}; both have the same GPU: at one price of it {found.least * 100:+.0f} %"
    ends = found and f"{found.least * 100:+.0f} % to {found.most * 100:+.0f} %"
    said += f"; at the {found.providers} providers that list both GPUs: {ends}" if found else ""
    return f"The provider decides. At these prices {said}" if pair.provider_decides else said


def _where(pair: Pair) -> str:
    return f"on {pair.row.instance} {_at(pair)}"


def _at(pair: Pair) -> str:
    mine, theirs = pair.row.batch_size, pair.reference.batch_size
    return f"at batch {mine}{'' if mine == theirs else f' against {theirs}'}"


def _origin(pair: Pair) -> str:
    known = (row.latest.provenance for row in (pair.row, pair.reference))
    wrong = any(ARTICLES_BLOCK in str(one and one.derivation) for one in known)
    caveat = ", with the article's wrong block" if wrong else ""
    return "" if pair.origin == "measured" else f" ({pair.origin}{caveat})"


def _more(pair: Pair) -> str:
    """Write e.g. `14.6 % more images per USD (13.8 to 15.5)`."""
    assumed = " at the what-if price" if WHAT_IF in (pair.row.price_source, pair.reference.price_source) else ""
    per = f"per USD{assumed}" if pair.by_value else "per second"
    return _percent(pair, f" {'more' if pair.gain >= 0 else 'fewer'} {pair.row.unit or 'units'} {per}")


def _percent(pair: Pair, what: str = "") -> str:
    low, high = sorted(map(abs, pair.gain_ci or (0.0, 0.0)))
    ends = "" if pair.gain_ci is None else f" ({low * 100:.1f} to {high * 100:.1f})"
    return f"{abs(pair.gain) * 100:.1f} %{what}{ends}"


def _interval(pair: Pair) -> str:
    without = "of one process" if pair.origin == "measured" else "within their rounding"
    ends = pair.gain_ci and f"({pair.gain_ci[0] * 100:.1f} to {pair.gain_ci[1] * 100:.1f})"
    return f"{pair.gain * 100:+.1f} % {ends or without}"


def method(comparison: Comparison, options: CompareOptions) -> str:
    """Return the text that goes with a table: of each instance also its software, and how often rows were measured."""
    parts = [
        f"# {', '.join(options.instances)}",
        f"Made by fp8bench {__version__}. `fp8bench compare --bundle FILE` prints this table again from the file's "
        f"records, at the prices of {options.day}.",
        METHOD,
    ]
    measured = [row for row in comparison.rows if row.source == "measured" and row.status == "ok"]
    software = ("GPU", "CPU", "driver", "torch", "cuda", "cudnn", "transformer-engine", "torchao")
    for instance, ours in grouped(measured, lambda row: row.instance).items():
        known = (row.software for row in ours if row.software)
        names = dict.fromkeys(f"{name} {of[name]}" for of in known for name in software if of.get(name))
        rounds, machines = sorted({row.rounds for row in ours}), len({row.machine for row in ours})
        processes = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{rounds[0]}"
        on = f"{machines} machines" if machines > 1 else "one machine"
        parts.append(f"{instance}: {processes} processes a row on {on}; {', '.join(names)}.")
    return "\n\n".join(parts)
