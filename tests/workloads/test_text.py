"""A text as tokens: its parts, its order, and what is refused."""

import os
from itertools import chain, islice

import pytest
from outside.outside_plugins import TinyLinear

from fp8bench.schema.errors import UsageError
from fp8bench.workloads import text as texts
from fp8bench.workloads.llama import LLM1B
from fp8bench.workloads.text import (
    HELD_OUT,
    Text,
    byte_level,
    held_out_starts,
    read,
    require_enough,
    sequences,
    standard_library,
    starts,
)


def test_the_standard_library_is_its_sources_with_one_file_in_twenty_held_out_or_told_missing(tmp_path):
    for number in range(HELD_OUT):
        (tmp_path / f"module_{number:02d}.py").write_text(f"x = {number:02d}\n")
    for folder in ("test", "site-packages", "__pycache__", "pydoc_data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.py").write_text("no\n")
    (tmp_path / "_sysconfigdata_linux.py").write_text("no\n")
    (tmp_path / "module.txt").write_text("no\n")
    found = standard_library(tmp_path)
    assert found.validation == b"x = 19\n"
    assert found.train == b"".join(b"x = %02d\n" % number for number in range(19))
    assert found.facts.train_bytes == 19 * 7
    found = read(None)
    assert found.facts.name == "Python's standard library"
    assert found.facts.train_bytes > 4_000_000
    assert 0.01 < found.facts.validation_bytes / found.facts.train_bytes < 0.15
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"sources of Python's standard library are not in .*\. Name a file"):
        standard_library(tmp_path / "empty")


def test_of_a_file_the_end_is_held_out_and_a_border_that_moves_is_another_text(tmp_path):
    file = tmp_path / "book.txt"
    file.write_bytes(bytes(range(100)))
    found = read(file)
    assert (found.name, found.train, found.validation) == ("book.txt", bytes(range(95)), bytes(range(95, 100)))
    one, other = Text("a", b"abc", b"d"), Text("a", b"ab", b"cd")
    assert one.facts.sha256 != other.facts.sha256
    assert one.facts.sha256 == Text("b", b"abc", b"d").facts.sha256


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"short"), "has 5 bytes, which is not enough text"),
        (
            lambda path: (path.touch(), os.truncate(path, 3 * 2**29)),
            r"has 1\.5 GiB, .* the most is 1 GiB\. Take a part: `head -c 1G",
        ),
    ],
    ids=["missing", "folder", "short", "large"],
)
def test_what_cannot_be_read_or_held_is_refused(make, told, tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "MOST_BYTES", 2**30)
    make(tmp_path / "text")
    with pytest.raises(UsageError, match=told):
        read(tmp_path / "text")


def taken(steps, batch_size=2, rank=0, world_size=1, seed=0):
    return list(islice(starts(161, 10, batch_size, rank, world_size, seed), steps))


def test_a_pass_takes_every_sequence_once_a_seed_has_one_order_and_two_ranks_share_it():
    assert sequences(161, 10) == 16
    batches = taken(16)
    first, second = (list(chain(*part)) for part in (batches[:8], batches[8:]))
    assert sorted(first) == sorted(second) == list(range(0, 160, 10))
    assert first != second
    assert taken(8) == taken(8)
    assert taken(8) != taken(8, seed=1)
    two = [taken(10, rank=rank, world_size=2) for rank in range(2)]
    assert [one + other for one, other in zip(*two, strict=True)] == taken(10, batch_size=4)


@pytest.mark.parametrize(
    ("size", "batch_size", "shares"),
    [(1001, 2, [[0, 120, 250, 370], [500, 620, 750, 870]]), (71, 8, [[0, 10, 20], [30, 40, 50]])],
)
def test_what_is_held_out_is_spread_over_the_part_and_shared_out_evenly(size, batch_size, shares):
    assert [held_out_starts(size, 10, 2, batch_size, rank, 2) for rank in range(2)] == shares


@pytest.mark.parametrize(
    ("train", "validation", "told"),
    [(80, 81, "80 bytes are to train on"), (1000, 80, "80 bytes are held out"), (10, 0, "0 bytes are held out")],
)
def test_less_than_a_sequence_for_each_place_of_a_step_is_refused(train, validation, told):
    require_enough(Text("a", bytes(81), bytes(81)), 10, 4, 2)
    with pytest.raises(UsageError, match=f"a is too short: {told}, and a step of 8 sequences of 10 .* needs 81"):
        require_enough(Text("a", bytes(train), bytes(validation)), 10, 4, 2)


def test_a_language_model_has_bytes_as_its_words_and_its_other_sizes_and_images_are_no_text():
    whole, sizes = LLM1B(data="device", seed=3), {"num_hidden_layers": 4, "sequence_length": 512}
    cut = byte_level(whole, sizes)
    assert cut.sizes() == {**whole.sizes(), **sizes, "vocab_size": 256}
    assert (cut.name, cut.seed, cut.units_per_step(2)) == ("llm-1b", 3, 1024)
    assert whole.sizes() == LLM1B().sizes()
    with pytest.raises(UsageError, match="'outside-linear' takes images, and has no vocabulary"):
        byte_level(TinyLinear(), {})
