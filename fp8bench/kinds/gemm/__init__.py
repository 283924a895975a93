"""GEMMs by shape, in bf16 and fp8: from which shape on fp8 pays, and how much it can give a complete step at most."""

from fp8bench.kinds.gemm import measure
from fp8bench.kinds.gemm.study import STUDY
from fp8bench.kinds.one_record import OneRecord

KIND = OneRecord(
    name="gemm",
    request=measure.GemmRequest,
    record=measure.GemmRecord,
    prepare=measure.prepare,
    measure=measure.measure,
    statuses=measure.statuses,
    tried="precisions",
    study=STUDY,
    figures={"plot": ("products", "the GEMMs")},
    # Shapes belong to no workload.
    idle=lambda flags: frozenset(("workload", "batch_size")) if {"--shape", "--sweep"} & set(flags) else frozenset(),
)
