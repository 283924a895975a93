"""Whether fp8 costs accuracy: modes are trained from the same weights on the same text, and their losses are compared
at equal steps, at equal time and at equal money.
"""

from collections.abc import Sequence

from fp8bench.kinds.converge import document, measure
from fp8bench.kinds.converge.measure import ConvergeRecord, ConvergeRequest, Job
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.one_record import OneRecord
from fp8bench.pricing.choose import require_region
from fp8bench.schema.instance import Catalog
from fp8bench.tables.document import Document


class Converge(OneRecord[ConvergeRequest, Job, ConvergeRecord]):
    """The kind `converge`, whose comparison uses prices."""

    def compared(self, records: Sequence[ConvergeRecord], catalog: Catalog, options: CompareOptions) -> Document:
        require_region(options.region, catalog, options.instances)
        return document.shown(records, catalog, options)


KIND = Converge(
    name="converge",
    request=ConvergeRequest,
    record=ConvergeRecord,
    example=(
        *("--mode", "baseline-bf16", "--mode", "baseline-fp32", "--seeds", "1", "--steps", "4"),
        *("--batch-size", "2", "--sequence-length", "16"),
    ),
    prepare=measure.prepare,
    measure=measure.measure,
    # Divergence is a finding, not an error.
    statuses=lambda record, _request: (one.status for one in record.trainings),
    work_of=measure.work_of,
    document=document.document,
    figures={"plot": (document.CURVES, "the losses")},
    compare_options=frozenset(("workload", "batch_size", "optimizer", "price_as_of", "region", "purchase", "price")),
)
