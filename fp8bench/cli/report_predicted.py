"""`fp8bench report --predict INSTANCE`: the predicted rows of the page on a machine that was not measured."""

from collections.abc import Sequence

from fp8bench.kinds.kind import CompareOptions
from fp8bench.predict.held_out import held_out, kept
from fp8bench.predict.model_error import merged
from fp8bench.predict.page import section
from fp8bench.predict.pairs import limits, merged_pairs
from fp8bench.predict.prediction import predictions
from fp8bench.predict.source import sources
from fp8bench.predict.target import target
from fp8bench.pricing.catalog import find
from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, require_region
from fp8bench.records.select import Measurement
from fp8bench.report.page.page import Section
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog


def predicted(
    instances: Sequence[str], measured: Sequence[Measurement], options: CompareOptions, catalog: Catalog
) -> Section:
    """Predict each of the instances from every measured row. measured: complete records. options: for the price.

    Raises UsageError if no measured row can be used for a prediction, and as `predict` does.
    """
    day = options.as_of or options.today
    query = PriceQuery(day, day >= options.today, options.region, options.purchase, ANY_MACHINE)
    measured = [one for one in measured if one.latest.config and one.latest.config.device == "cuda"]
    if not measured:
        raise UsageError(
            "no row was measured on a GPU, so nothing can be predicted from it", "Omit --predict, or name other rows"
        )
    from_rows = sources(measured, catalog, lambda record: record)
    records = [record for one in measured for record in one.rounds]
    known = kept()
    others = held_out(records, catalog, lambda record: record, known.pairs)
    cases = merged(known.cases, others.cases)
    of_kernels = limits(merged_pairs(known.pairs, others.pairs), catalog.gpus)
    named = [find(catalog, name) for name in dict.fromkeys(instances)]
    require_region(query.region, catalog, [instance.key for instance in named])
    targets = [target(instance, catalog, None, query) for instance in named]
    return section([predictions(from_rows, each, cases, of_kernels, catalog, query) for each in targets])
