"""Whether fp8 costs accuracy: modes are trained from the same weights on the same text, and their losses are compared
at equal steps, at equal time and at equal money.
"""

from fp8bench.kinds.converge import measure
from fp8bench.kinds.converge.document import STUDY
from fp8bench.kinds.one_record import OneRecord

KIND = OneRecord(
    name="converge",
    request=measure.ConvergeRequest,
    record=measure.ConvergeRecord,
    prepare=measure.prepare,
    measure=measure.measure,
    # Divergence is a finding, not an error.
    statuses=lambda record, _request: (one.status for one in record.trainings),
    on_nodes=True,
    study=STUDY,
    figures={"plot": ("curves", "the losses")},
    with_prices=True,
)
