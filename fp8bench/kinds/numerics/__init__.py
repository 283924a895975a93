"""What error each precision mode adds to a layer, measured against float64, and how delayed scaling answers a jump."""

from fp8bench.kinds.numerics import measure
from fp8bench.kinds.numerics.document import STUDY
from fp8bench.kinds.numerics.measure import NumericsRecord, NumericsRequest
from fp8bench.kinds.one_record import OneRecord

KIND = OneRecord(
    name="numerics",
    request=NumericsRequest,
    record=NumericsRecord,
    prepare=measure.prepare,
    measure=measure.measure,
    statuses=lambda record, _request: (row.status for row in record.rows),
    study=STUDY,
    figures={"plot": ("errors", "the errors"), "history_plot": ("jump", "the jump")},
)
