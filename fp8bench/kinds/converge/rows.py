"""Trainings of the same work as numbers: each mode of each record compared with the reference, which is the first mode
of the first record.

Records of several instances are joined with their prices, so that what a dollar buys on one is compared with what it
buys on another. A mode whose fp8 is emulated has neither time nor money, because they mean nothing.
"""

from collections.abc import Sequence
from datetime import date
from statistics import fmean
from typing import Any, Literal, get_args

from pydantic import Field

from fp8bench.kinds.converge import gaps
from fp8bench.kinds.converge.gaps import Diverged, Gap, Points
from fp8bench.kinds.converge.measure import ConvergeRecord
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import Used, priced
from fp8bench.schema.converge import Curve, Trained
from fp8bench.schema.errors import Status
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog
from fp8bench.tables.side_by_side import labels

HOUR_S = 3600.0

Spent = Literal["steps", "time", "money"]


class Row(Frozen):
    """One mode of one record. Losses and gaps are in nats; gaps are against the reference, and below 0 is better. Null:
    the row is the reference, or there is nothing to compare. where: the name of the record, if there are several.
    curves: by seed, without those that diverged.
    """

    instance: str
    run_id: str
    mode: str
    is_reference: bool
    status: Status
    reason: str | None
    emulated: bool
    seeds: int
    diverged: tuple[Diverged, ...]
    final_loss: Gap | None
    step_time_s: float | None
    tokens_per_s: float | None
    seconds: float | None
    usd_per_hour: float | None
    usd: float | None
    equal_steps: Gap | None = None
    equal_time: Gap | None = None
    equal_time_s: float | None = None
    equal_money: Gap | None = None
    equal_money_usd: float | None = None
    time_to_same_loss: Gap | None = None
    money_to_same_loss: Gap | None = None
    where: str = Field(exclude=True)
    curves: dict[int, Curve] = Field(exclude=True)

    @property
    def name(self) -> str:
        """The mode, and the record if there are several."""
        return f"{self.mode} on {self.where}" if self.where else self.mode

    def over(self, spent: Spent, seed: int) -> Points:
        """Return the curve over what is spent; empty if that means nothing."""
        if spent == "steps":
            return gaps.by_steps(self.curves[seed])
        per_second = 1.0 if spent == "time" else (self.usd_per_hour or 0.0) / HOUR_S
        return gaps.by_cost(self.curves[seed], per_second) if per_second and not self.emulated else []


class ConvergeReport(Frozen):
    """One record, compared with the reference of its group. price_as_of: null if it has no price, or an undated one.
    share: the share of an instance's price, in words; null if all of it is counted.
    """

    run_id: str
    instance: str
    device_name: str | None
    price_as_of: date | None
    share: str | None
    no_price: str | None
    rows: tuple[Row, ...]
    trainings: tuple[Trained, ...]
    warnings: tuple[str, ...]


def compare(records: Sequence[ConvergeRecord], catalog: Catalog, options: CompareOptions) -> list[ConvergeReport]:
    """Compare records. records: of one fingerprint, at least one."""
    reference: Row | None = None
    reports = []
    for record, name in zip(records, labels(records), strict=True):
        used = Used(record.config.world_size, record.config.nodes, record.config.device == "cuda")
        price = priced(record, used, catalog, options, options.as_of or options.today)
        rows = []
        for mode in record.config.modes:
            row = _row(record, mode, price.usd_per_hour, name if len(records) > 1 else "")
            rows.append(_against(row, reference) if reference else row.model_copy(update={"is_reference": True}))
            reference = reference or row
        reports.append(
            made_of(
                ConvergeReport,
                record,
                price_as_of=price.price.as_of if price.price else None,
                share=f"{price.gpus[0]} of {price.gpus[1]} GPUs of {price.share_of}" if price.gpus else None,
                no_price=price.why_none or None,
                rows=tuple(rows),
            )
        )
    return reports


def _row(record: ConvergeRecord, mode: str, usd_per_hour: float | None, where: str) -> Row:
    trained = [one for one in record.trainings if one.mode == mode]
    stopped = next((one for one in trained if one.status != "ok"), None)
    curves = {one.seed: one.curve for one in trained if one.curve is not None}
    diverged = [found for seed, curve in curves.items() if (found := gaps.divergence(curve, seed)) is not None]
    step_s = fmean(sum(one.step_s) / len(one.step_s) for one in curves.values()) if curves else None
    finished = {seed: curve for seed, curve in curves.items() if seed not in {one.seed for one in diverged}}
    emulated = any(one.evidence is not None and one.evidence.emulated for one in trained)
    seconds = fmean(one.elapsed_s[-1] for one in finished.values()) if finished and not emulated else None
    return Row(
        instance=record.instance,
        run_id=record.run_id,
        mode=mode,
        is_reference=False,
        status="ok" if curves else stopped.status if stopped else "unsupported",
        reason=stopped.reason if stopped else None,
        emulated=emulated,
        seeds=len(curves),
        diverged=tuple(diverged),
        final_loss=gaps.estimate(gaps.by_steps(curve)[-1][1] for curve in finished.values()),
        step_time_s=step_s,
        tokens_per_s=record.work.tokens_per_step / step_s if record.work and step_s else None,
        seconds=seconds,
        usd_per_hour=usd_per_hour,
        usd=seconds * (usd_per_hour / HOUR_S) if seconds is not None and usd_per_hour else None,
        where=where,
        curves=finished,
    )


def _against(row: Row, reference: Row) -> Row:
    seeds = [seed for seed in row.curves if seed in reference.curves]
    found: dict[str, Any] = {}
    for spent in get_args(Spent):
        pairs = [(row.over(spent, seed), reference.over(spent, seed)) for seed in seeds]
        judged = {f"equal_{spent}": gaps.estimate(gaps.gap_in_the_end(*pair) for pair in pairs)}
        if spent != "steps":
            least = [min(mine[-1][0], theirs[-1][0]) for mine, theirs in pairs if mine and theirs]
            found["equal_time_s" if spent == "time" else "equal_money_usd"] = fmean(least) if least else None
            ratios = [gaps.ratio_to_same_loss(*pair) for pair in pairs]
            judged[f"{spent}_to_same_loss"] = gaps.estimate(ratios, ratios=True)
        # Seeds without divergence flatter a mode that diverges: its verdict says so.
        said = {"verdict": "diverged"} if row.diverged else {}
        found |= {name: gap and gap.model_copy(update=said) for name, gap in judged.items()}
    return row.model_copy(update=found)
