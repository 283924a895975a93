"""Which rows `compare`, `report`, `scaling` and a bundle show, and at which prices: resolved here for all of them, so
that they show the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import cache, partial
from typing import Annotated

from pydantic import PositiveInt

from fp8bench import registry
from fp8bench.cli.options import BatchSize, Optimizer, PriceAsOf, Region, Workload, option
from fp8bench.cli.output import load_catalog, require_read
from fp8bench.config.options import Options
from fp8bench.kinds.kind import AS_IT_IS, CompareOptions, View, parse_price
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import results
from fp8bench.records.files import Folders
from fp8bench.records.named import parse_reference
from fp8bench.records.select import BY_WORK, Filter, Measurement
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Purchase
from fp8bench.schema.option import BATCH_SIZE, Option


class Scope(Options):
    """Which records are shown, at which prices. All options are optional."""

    price_as_of: PriceAsOf = None
    region: Region = None
    purchase: Annotated[Purchase | None, option(None, "How it is bought [on_demand].")] = None
    workload: Workload = None
    batch_size: BatchSize = None
    optimizer: Optimizer = None
    grad_accumulation: Annotated[
        PositiveInt | None, Option("Only records with this many micro-batches a step", limit=BATCH_SIZE)
    ] = None
    every: Annotated[bool, Option("Every record, not only the latest of each variant", flags=("--all",))] = False
    allow_mismatch: Annotated[bool, Option("Compare unlike work, machines and software, marked")] = False

    def resolved(
        self,
        instances: Sequence[str],
        results_dir: Folders,
        view: View = AS_IT_IS,
        named: bool = True,
        kept: tuple[Catalog, date] | None = None,
    ) -> tuple[CompareOptions, Catalog]:
        """Return the options and the catalogue. named: whether the user named the instances. kept: the catalogue and
        the day of a bundle; None for those of today. Raises UsageError.
        """
        if self.workload is not None:
            registry.find_workload(self.workload)
        catalog, today = kept or (load_catalog(results_dir), date.today())
        # Looks into every record, so once, and only for a name that is not in the catalogue.
        measured = cache(lambda: results.known_instances(results_dir))

        def key_of(name: str) -> str:
            if name in catalog.instances or name in measured():
                return name
            catalogs.require_read(catalog, [name])
            try:
                return catalogs.find(catalog, name, measured()).key
            except UsageError as error:
                raise UsageError(f"{error.what}, and {results.what_lies_in(results_dir)}", error.remedy) from error

        keys = list(dict.fromkeys(map(key_of, instances)))
        asked = getattr(self, "reference", None)
        reference = parse_reference(asked, keys)
        reference = replace(reference, instance=key_of(reference.instance))
        require_read(catalog, [*(keys if named else ()), *([reference.instance] if asked else ())])
        assumed: dict[str, float] = {}
        for name, usd in map(parse_price, view.price):
            if (key := key_of(name)) not in keys:
                remedy = f"Add it, or give one of: {', '.join(keys)}"
                raise UsageError(f"--price {name}: that instance is not compared", remedy)
            if assumed.setdefault(key, usd) != usd:
                raise UsageError(f"--price gives {name} two prices, {assumed[key]:g} and {usd:g}", "Give one")
        return CompareOptions(
            instances=tuple(keys),
            today=today,
            reference=reference,
            as_of=self.price_as_of,
            region=self.region,
            purchase=self.purchase or "on_demand",
            wanted=Filter(**{name: getattr(self, name) for name in BY_WORK}),
            every=self.every,
            allow_mismatch=self.allow_mismatch,
            price=assumed,
            view=view,
            foresee=_foreseen,
            ahead=partial(_ahead, results_dir),
        ), catalog


class Selection(Scope):
    """A scope with the row that others are compared with."""

    reference: Annotated[
        str | None,
        option("INSTANCE:MODE[:RECIPE][/VARIANT]", "Row to compare with [the first's baseline-bf16]."),
    ] = None


def _foreseen(measured: Sequence[Measurement], names: Sequence[str], catalog: Catalog) -> list[Measurement]:
    # Most comparisons predict nothing.
    from fp8bench.predict.prediction import foreseen

    return foreseen(measured, names, catalog)


def _ahead(
    results_dir: Folders, measured: Sequence[Measurement], gpus: Sequence[int], catalog: Catalog
) -> tuple[list[Measurement], list[str]]:
    from fp8bench.scaling.projected import Network, measured_links, over_nodes

    names = {one.latest.instance for one in measured}
    return over_nodes(measured, gpus, Network(measured_links(results_dir, names), catalog))
