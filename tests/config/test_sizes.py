"""Sizes as NAME=N, and the name of a workload that has them."""

import pytest

from fp8bench.config.options import read_sizes, sized, sizes_of
from fp8bench.config.sources import resolve
from fp8bench.registry import find_workload, switches_of, unit_of
from fp8bench.schema.errors import UsageError


def test_a_name_has_its_sizes_in_one_order_whoever_wrote_them():
    name = sized("vit-micro", {"embed_dim": 32, "depth": 1})
    assert name == sized("vit-micro,embed_dim=32,depth=1") == "vit-micro,depth=1,embed_dim=32"
    assert sizes_of(name) == {"depth": 1, "embed_dim": 32}
    assert sized("vit-micro") == sized("vit-micro", {}) == "vit-micro"
    assert sized("vit-micro,depth=1", {"depth": 3}) == "vit-micro,depth=3"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("depth", "--size 'depth' is not NAME=N"),
        ("=4", "is not NAME=N"),
        ("depth=", "is not NAME=N"),
        ("", "is not NAME=N"),
        ("depth=0", "--size depth '0' is not a whole number of at least 1"),
        ("depth=-1", "not a whole number"),
        ("depth=1.5", "not a whole number"),
        ("depth=99999999", "is too large"),
    ],
)
def test_what_is_no_size_is_refused_in_an_option_and_in_a_name(word, told):
    with pytest.raises(UsageError, match=told):
        read_sizes([word])
    with pytest.raises(UsageError, match=told):
        sized(f"vit-micro,{word}")


def test_a_size_given_twice_must_be_the_same_and_a_file_may_have_sizes_as_a_word_a_list_or_a_mapping():
    assert read_sizes(["depth=1", "depth = 1"]) == {"depth": 1}
    with pytest.raises(UsageError, match="--size depth is given as 1 and as 2"):
        read_sizes(["depth=1", "depth=2"])
    for written in ("depth=1,embed_dim=32", ["depth=1", "embed_dim=32"], {"depth": 1, "embed_dim": 32}):
        assert resolve({}, {}, {"size": written}, "a.yaml").request.size == ("depth=1", "embed_dim=32")


def test_what_is_known_of_a_workload_is_known_of_it_with_other_sizes_but_the_width_of_a_head():
    plain, other = find_workload("gpt-layer"), find_workload("gpt-layer,heads=16")
    assert other == plain._replace(name="gpt-layer,heads=16", head_dim=None)
    assert switches_of(other.name) == switches_of(plain.name) != ()
    assert unit_of(other.name) == "tokens"
    assert unit_of("timm:convnext_tiny,depth=1") == "images"
    with pytest.raises(UsageError, match="Did you mean 'vit-micro'"):
        find_workload("vit-micr,depth=1")
