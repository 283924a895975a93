"""Products drawn: what is on the picture, and that it is drawn alike."""

import re
from xml.etree import ElementTree

import pytest
from report.made_gemm import config, gemm_record, sweep_record, timing

from fp8bench.kinds.gemm.figure import FASTER, SLOWER, _colour, draw
from fp8bench.kinds.gemm.rows import gemm_report
from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.gemm import Product, ProductTimings, Shape, Timing
from fp8bench.tables.chart import contrast, on

pytestmark = pytest.mark.slow

CATALOG = load()


def drawn(record, path):
    draw(gemm_report(record, CATALOG), path)
    return path


def texts(path):
    """What an SVG says, in order."""
    return [node.text for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def shapes(*timings, **changes):
    products = (ProductTimings(product=Product(shape=Shape(m=64, n=64, k=64)), timings=timings),)
    return gemm_record(products=products, bounds=(), config=config(workload=None, batch_size=None), **changes)


def test_a_heat_map_has_each_product_and_precision_with_speed_and_speed_up(tmp_path):
    said = texts(drawn(gemm_record(), tmp_path / "map.svg"))
    assert {
        "TFLOP/s of GEMMs, and fp8's speed-up over bf16: vit-huge, batch 64, NVIDIA H200",
        "bf16",
        "tensorwise",
        "rowwise-fast",
    } <= set(said)
    assert {"blocks.*.mlp.fc1 forward", "12608 x 5120 x 1280", "head forward"} <= set(said)
    assert {"669", "1,137  1.70x", "0.94x"} <= set(said)


def test_faster_and_slower_have_colours_of_their_own_next_to_the_legends(tmp_path):
    for bf16, fp8, colours in ((4e-3, 1e-3, (2, 1)), (1e-3, 4e-3, (1, 2))):
        path = drawn(shapes(timing("bf16", bf16), timing("fp8-rowwise", fp8)), tmp_path / "map.svg")
        assert tuple(path.read_text().count(f"fill: {colour}") for colour in (FASTER, SLOWER)) == colours


@pytest.mark.parametrize("speedup", [None, 0.1, 0.5, 0.9, 1.0, 1.4, 2.0, 8.0])
def test_text_can_be_read_on_the_colour_of_its_cell(speedup):
    assert contrast(_colour(speedup), {"black": "#000000", "white": "#ffffff"}[on(_colour(speedup))]) >= 4.5


def test_what_did_not_run_or_was_emulated_says_so(tmp_path):
    wrong = Timing(precision="fp8-rowwise", status="invalid", reason="the product is off by 1")
    emulated = timing("fp8-tensorwise", 1e-3, emulated=True)
    said = texts(drawn(shapes(timing("bf16", 1e-3), emulated, wrong, environment=None), tmp_path / "map.svg"))
    assert "invalid" in said
    assert "0.000524 (emulated)" in said
    assert any("GEMMs, CPU of custom-1x-nvidia-h200" in one for one in said)


def test_a_sweep_is_lines_over_the_size(tmp_path):
    said = texts(drawn(sweep_record(), tmp_path / "lines.svg"))
    assert {"512", "8192", "TFLOP/s", "fp8-tensorwise", "bf16"} <= set(said)
    assert {"M = N = K", "broken: with eager casts"} <= set(said)


def test_a_sweep_whose_every_product_failed_is_drawn_all_the_same(tmp_path):
    failed = Timing(precision="bf16", status="unsupported", reason="for a reason")
    products = (ProductTimings(product=Product(shape=Shape(m=64, n=64, k=64)), timings=(failed,)),)
    assert drawn(sweep_record(products=products), tmp_path / "lines.svg").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("made", [gemm_record, sweep_record])
@pytest.mark.parametrize("name", ["one.svg", "one.png"])
def test_the_same_numbers_give_the_same_bytes_and_a_png_is_wide_enough_for_a_readme(made, name, tmp_path):
    (tmp_path / "other").mkdir()
    first, second = (drawn(made(), folder / name).read_bytes() for folder in (tmp_path, tmp_path / "other"))
    assert first == second
    assert not re.search(rb"<dc:date>|Matplotlib v|Software", first)
    if name.endswith("png"):
        assert int.from_bytes(first[16:20]) == 1800


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"End it in .png, .svg or .pdf"):
        drawn(gemm_record(), tmp_path / "map.gif")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RunFailed, match="cannot write"):
        drawn(gemm_record(), tmp_path / "none" / "map.svg")
