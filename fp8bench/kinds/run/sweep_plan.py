"""What `sweep --dry-run` shows: the planned looks, and the time and cost of the looks and of the rounds."""

from statistics import fmean

from fp8bench.kinds.run.sweep import NotTried, about_untried, not_tried
from fp8bench.launch.forecast import duration as time_in_words
from fp8bench.launch.sweep.budget import Budget
from fp8bench.launch.sweep.halving import When, best_first
from fp8bench.launch.sweep.search import Sweep, resumed, spending_of
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.schema.execution import CompileChoice, GraphChoice
from fp8bench.schema.files import Frozen, made_of
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, word


class PlannedLook(Frozen):
    """One configuration that would be looked at. seconds: its expected time. when: its turn. within_budget: whether it
    fits together with the rounds, as far as forecasts tell.
    """

    mode: str
    batch_size: int
    compile: CompileChoice
    cuda_graphs: GraphChoice
    te_attention: str
    when: When
    seconds: float
    within_budget: bool


class SweepPlan(Frozen):
    """What `sweep --dry-run --json` prints. looks_done: by earlier calls of this sweep. round_turns, rounds_seconds: of
    all rounds, at most. known: whether all times are from records of the same work; else they are lower bounds.
    batch_sizes: whether more sizes are looked at, until the largest that fits is known.
    """

    session: str
    instance: str
    looks: tuple[PlannedLook, ...]
    looks_done: int
    looks_seconds: float
    rounds: int
    round_turns: int
    rounds_seconds: float
    known: bool
    batch_sizes: bool
    usd_per_hour: float | None
    usd: float | None
    budget_seconds: float | None
    not_tried: tuple[NotTried, ...]


def plan_of(sweep: Sweep) -> SweepPlan:
    """Return the plan. Runs and writes nothing. Raises UsageError as `resumed` does."""
    budget, seen = sweep.budget, resumed(sweep)
    spending, configs = spending_of(sweep, seen), [one.config for one in sweep.space.candidates]
    looks, before, spent_s, looks_s = list[PlannedLook](), best_first(seen, sweep.rule), 0.0, 0.0
    for config, when in spending.wanted(seen):
        seconds = spending.look_s(config)
        within = spending.looks_come(spent_s) and spending.fits(config, before, seen, spent_s)
        label = config.mode_label
        looks.append(made_of(PlannedLook, config, mode=label, when=when, seconds=seconds, within_budget=within))
        looks_s += seconds
        if within:
            before, spent_s = [*before, config], spent_s + seconds
    done = sum(map(len, seen.rounds.values()))
    turns = max(0, sweep.rule.most_round_turns(len(looks) + len(seen.looks)) - done)
    rounds_s = turns * fmean(map(spending.round_s, configs)) if configs else 0.0
    return SweepPlan(
        session=sweep.name,
        instance=sweep.prepared.instance.key,
        looks=tuple(looks),
        looks_done=len(seen.looks),
        looks_seconds=looks_s,
        rounds=sweep.rule.rounds,
        round_turns=turns,
        rounds_seconds=rounds_s,
        known=all(map(spending.forecaster.is_known, configs)),
        batch_sizes=sweep.rule.blank is not None,
        usd_per_hour=budget.usd_per_hour,
        usd=_usd(looks_s + rounds_s, budget),
        budget_seconds=budget.seconds,
        not_tried=not_tried(sweep.space.untried),
    )


COLUMNS: tuple[Column[PlannedLook], ...] = (
    word("mode", lambda look: look.mode),
    Column("batch", lambda look: look.batch_size, "d"),
    word("compile", lambda look: look.compile),
    word("graphs", lambda look: look.cuda_graphs),
    word("attention", lambda look: look.te_attention),
    word("comes", lambda look: look.when),
    word("in budget", lambda look: "yes" if look.within_budget else "no"),
    Column("expected", lambda look: look.seconds, ".0f", unit="s"),
)


def document(sweep: Sweep) -> doc.Document:
    """Return the document. Its data is a `SweepPlan`."""
    plan = plan_of(sweep)
    table = doc.Table(
        (
            doc.Cells("look", tuple(str(number) for number, _ in enumerate(plan.looks, start=plan.looks_done + 1))),
            *(column.cells(plan.looks) for column in COLUMNS),
        ),
        naming=2,
    )
    said = [*map(doc.Sentence, _lines(plan, sweep.budget))]
    shown = doc.blocks(said, [table] if plan.looks else [], about_untried(plan.not_tried))
    return doc.Document(shown, data=plan, lines=doc.CsvLines.of(PlannedLook, plan.looks))


def _lines(plan: SweepPlan, budget: Budget) -> list[str]:
    done = f", and {plan.looks_done} are done" if plan.looks_done else ""
    sizes = ", and after the usual settings at larger batch sizes of the leaders" if plan.batch_sizes else ""
    all_s = plan.looks_seconds + plan.rounds_seconds
    about = "about" if plan.known else "at least"
    lines = [
        f"Would look at {len(plan.looks)} configurations of {plan.instance}{done}{sizes}; then {plan.rounds} rounds of "
        f"the best, at most {plan.round_turns} turns.",
        f"Time: {about} {time_in_words(plan.looks_seconds)} for the looks, and {time_in_words(plan.rounds_seconds)} "
        "for the rounds if none is dropped early.",
    ]
    if budget.seconds is not None and all_s > budget.seconds:
        fit = sum(look.within_budget for look in plan.looks)
        lines.append(f"The budget of {budget.text} ends it earlier. At most {fit} looks fit beside the rounds.")
    if plan.usd is None:
        lines.append("Cost: unknown, since no price of this machine is known; --price gives one.")
    else:
        most = plan.usd if budget.seconds is None else min(plan.usd, _usd(budget.seconds, budget) or plan.usd)
        lines.append(f"Cost: about {most:,.2f} USD at {plan.usd_per_hour:,.2f} USD an hour.")
    if not plan.known:
        lines.append("Where there is no record of the same work, only what a start and torch.compile take is counted.")
    return lines


def _usd(seconds: float, budget: Budget) -> float | None:
    return None if budget.usd_per_hour is None else seconds / SECONDS_PER_HOUR * budget.usd_per_hour
