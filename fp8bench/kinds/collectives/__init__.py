"""How fast ranks communicate: all-reduce, all-gather and reduce-scatter over sizes."""

from fp8bench.kinds.collectives import measure
from fp8bench.kinds.collectives.measure import CollectivesRecord, CollectivesRequest
from fp8bench.kinds.collectives.study import STUDY
from fp8bench.kinds.one_record import OneRecord

KIND = OneRecord(
    name="collectives",
    request=CollectivesRequest,
    record=CollectivesRecord,
    prepare=measure.prepare,
    measure=measure.measure,
    statuses=lambda record, _request: [record.status],
    on_nodes=True,
    study=STUDY,
)
