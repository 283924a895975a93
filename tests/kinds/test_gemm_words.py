"""Formats that a user names for `fp8bench gemm`: words, the GEMMs they make, and what is kept of them."""

import pytest
from report.made_gemm import config, gemm_record

from fp8bench.kinds.gemm import KIND
from fp8bench.kinds.gemm.measure import (
    GemmRecord,
    GemmRequest,
    exit_code,
    fingerprint,
    measure,
    of_shape,
    parse_outputs,
    parse_pairs,
    prepare,
)
from fp8bench.pricing.catalog import load
from fp8bench.records import results
from fp8bench.schema.errors import UsageError
from fp8bench.schema.gemm import PAIRS, Product, Shape
from fp8bench.tables.render import render

SHAPE = Shape(m=32, n=16, k=48)
document = KIND.document

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("fp8bench.numerics.gemm.bench.CEILING_SIZES", {"cpu": (16, 32)})


def test_pairs_are_read_in_one_order():
    assert parse_pairs(("e5m2xe4m3", " E4M3 , e4m3 ")) == (("e4m3", "e4m3"), ("e5m2", "e4m3"))
    assert parse_pairs(("all",)) == PAIRS
    assert parse_pairs(()) == ()


def test_outputs_are_read_in_one_order():
    assert parse_outputs(("e4m3", "bf16")) == ("bf16", "e4m3")
    assert parse_outputs(("all",)) == ("bf16", "fp32", "e4m3")


@pytest.mark.parametrize(
    ("parse", "word", "said"),
    [
        (parse_pairs, "e4m3,e5m3", "unknown --pair 'e4m3,e5m3'. Did you mean 'e4m3,e5m2' or 'e4m3,e4m3'"),
        (parse_pairs, "e4m3", "unknown --pair 'e4m3'"),
        (parse_outputs, "fp16", "unknown --output 'fp16'"),
    ],
)
def test_what_is_not_known_is_refused_with_the_nearest(parse, word, said):
    with pytest.raises(UsageError) as refused:
        parse((word,))
    assert said in str(refused.value)


@pytest.mark.parametrize("words", [{"pairs": ("all",)}, {"bias": True}, {"outputs": ("fp32",), "sweep": True}])
def test_they_belong_to_shapes(words, tmp_path):
    with pytest.raises(UsageError, match=r"belongs to --shape, and (a workload|a sweep) has the formats of training"):
        prepare(GemmRequest(results_dir=tmp_path, **words), {})


def test_they_need_fp8(tmp_path):
    request = GemmRequest(shapes=("32,16,48",), pairs=("all",), precisions=("bf16",), results_dir=tmp_path)
    with pytest.raises(UsageError, match="--pair is of fp8, and bf16 alone was named"):
        prepare(request, {})


def test_a_shape_without_named_formats_is_one_gemm_as_ever():
    assert of_shape(SHAPE, config()) == [Product(shape=SHAPE)]
    assert fingerprint(config(), None, True).keys().isdisjoint({"pairs", "bias", "outputs"})


def test_what_is_named_makes_a_gemm_for_each():
    found = of_shape(SHAPE, config(pairs=(("e4m3", "e5m2"),), bias=True, outputs=("bf16", "e4m3")))
    assert [one.label for one in found] == [
        "e4m3 x e5m2",
        "e4m3 x e5m2, bias",
        "e4m3 x e5m2, to e4m3",
        "e4m3 x e5m2, bias, to e4m3",
    ]
    (only,) = of_shape(SHAPE, config(outputs=("fp32",)))
    assert (only.formats, only.label) == (("e4m3", "e4m3"), "e4m3 x e4m3, to fp32")


@pytest.mark.usefixtures("no_gpu")
def test_they_are_kept_shown_and_part_of_the_fingerprint(tmp_path):
    request = GemmRequest(
        shapes=("32,16,48",),
        pairs=("all",),
        bias=True,
        outputs=("bf16", "e4m3"),
        precisions=("fp8-tensorwise",),
        seconds="0.0001",
        results_dir=tmp_path,
    )
    record = measure(prepare(request, {}), lambda line: None)
    assert exit_code(record, request) == 0
    assert results.read_record(results.write(record, tmp_path), GemmRecord) == record
    assert record.fingerprint["pairs"][1] == "e4m3 x e5m2"
    assert len(record.products) == 4 * 2 * 2
    shown = render(document([record], load()), "plain")
    assert "32 x 16 x 48" in shown
    rows = [line for line in shown.splitlines() if "fp8-tensorwise" in line]
    assert len(rows) == len(record.products)
    assert sum("unsupported [a]" in row for row in rows) == 4
    assert "[a] no GPU takes it: cuBLASLt has no GEMM of two e5m2 matrices" in shown
    assert "Eager casts" not in shown


@pytest.mark.usefixtures("no_gpu")
def test_a_pair_that_nothing_takes_alone_is_exit_code_3(tmp_path):
    request = GemmRequest(
        shapes=("32,16,48",), pairs=("e5m2,e5m2",), precisions=("fp8-rowwise",), seconds="0.0001", results_dir=tmp_path
    )
    assert exit_code(measure(prepare(request, {}), lambda line: None), request) == 3


def test_a_record_of_an_older_format_has_the_formats_of_training(tmp_path):
    """Its products and its configuration know nothing of named formats, and its schema version is the one before."""
    record = gemm_record(schema_version=6)
    path = results.write(record, tmp_path)
    text = path.read_text()
    for name in ("formats", "output", "bias"):
        assert f'"{name}"' in text
    older = record.model_dump(mode="json")
    for key in ("pairs", "bias", "outputs"):
        older["config"].pop(key)
    for one in older["products"]:
        for key in ("formats", "bias", "output"):
            one["product"].pop(key)
    read = GemmRecord.model_validate(older)
    assert {one.product.formats for one in read.products} == {None}
    assert read.products == record.products
    before, after = (render(document([one], load()), "markdown") for one in (record, read))
    assert before == after
