"""One's own file beside the results adds prices, and makes no other machine of an instance."""

from pathlib import Path

import pytest

from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import UsageError

P5 = """\
key: p5
gpu: H100-SXM5-80GB
gpu_count: 8
prices:
- {usd_per_hour: 40.0, purchase: on_demand, as_of: 2026-11-01, source: our contract}
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name / "instance.yaml"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_a_price_of_ones_own_goes_first_and_is_not_doubted(tmp_path):
    (own, *_) = load([written(tmp_path, "p5", P5)]).instances["p5"].prices

    assert (own.usd_per_hour, own.doubt) == (40.0, None)


def test_a_key_that_is_not_its_folders_name_is_refused_by_file_and_line(tmp_path):
    path = written(tmp_path, "p4d", "# ours\n" + P5)

    with pytest.raises(UsageError) as refusal:
        load([path])

    assert refusal.value.what == f"{path} line 2: its key is 'p5', and its folder is 'p4d'"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("gpu_count: 8", "gpu_count: 4"), "line 3: gpu_count is 4, and the catalogue's p5 has 8"),
        (("H100-SXM5-80GB", "B200"), "line 2: gpu is 'B200', and the catalogue's p5 has 'H100-SXM5-80GB'"),
    ],
)
def test_a_machine_that_contradicts_the_catalogue_is_refused_by_file_and_line(wrong, words, tmp_path):
    path = written(tmp_path, "p5", P5.replace(*wrong))

    with pytest.raises(UsageError) as refusal:
        load([path])

    assert refusal.value.what == f"{path} {words}"


def test_a_gpu_that_is_not_said_contradicts_nothing(tmp_path):
    assert load([written(tmp_path, "p5", P5.replace("H100-SXM5-80GB", "null"))]).instances["p5"].gpu_count == 8


@pytest.mark.parametrize(
    ("usd_per_hour", "far"), [(440.0, "8.0 times"), (6.88, "1/8.0 of"), (276.0, "5.0 times"), (10.9, "1/5.0 of")]
)
def test_a_price_far_from_the_catalogues_is_doubted_with_both(usd_per_hour, far, tmp_path):
    (own, usual, *_) = load([written(tmp_path, "p5", P5.replace("40.0", str(usd_per_hour)))]).instances["p5"].prices

    assert own.usd_per_hour == usd_per_hour
    assert own.doubt is not None
    assert f"{usd_per_hour:,.2f} USD/h (our contract), is {far} the catalogue's 55.04" in own.doubt
    assert usual.doubt is None


@pytest.mark.parametrize("usd_per_hour", [11.1, 275.0])
def test_one_within_five_times_is_taken_as_it_is(usd_per_hour, tmp_path):
    (own, *_) = load([written(tmp_path, "p5", P5.replace("40.0", str(usd_per_hour)))]).instances["p5"].prices

    assert own.doubt is None


def test_it_is_held_against_prices_of_its_own_kind_and_day(tmp_path):
    spot = P5.replace("40.0", "4.0").replace("on_demand", "spot")
    old = P5.replace("40.0", "480.0").replace("2026-11-01", "2024-01-01")

    assert load([written(tmp_path, "p5", spot)]).instances["p5"].prices[0].doubt is None
    (tmp_path / "then").mkdir()
    assert load([written(tmp_path / "then", "p5", old)]).instances["p5"].prices[0].doubt is None


def test_a_folder_is_called_as_it_is_named_and_not_as_what_it_links_to(tmp_path):
    written(tmp_path, "box-one", P5)
    (tmp_path / "p5").symlink_to(tmp_path / "box-one")

    assert load([tmp_path / "p5" / "instance.yaml"]).instances["p5"].prices[0].usd_per_hour == 40.0
