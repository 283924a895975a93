"""Errors of several records as text: side by side where they did the same work, and as ever where not."""

import json

import pytest
from builders import environment
from report.made_numerics import DOWN_AT, STEPS, UP_AT, history, record, refused, row, trace

from fp8bench.kinds.numerics.document import blocks, document, ratio_text
from fp8bench.schema.numerics import TENSORS, AmaxJump
from fp8bench.tables.document import Document
from fp8bench.tables.render import render

FIRST = record(
    row(relative_error=0.0379),
    row(tensor="input_gradient", relative_error=0.05),
    refused("te-fp8:mxfp8"),
    instance="p5en",
)
OTHER = record(
    row(relative_error=0.0417), row(tensor="input_gradient", relative_error=0.0499), instance="p5", minutes=3
)
UNLIKE = {"kind": "numerics", "width": 64}


def text_in(form, records):
    return render(document(records), form)


def text_alone(form, records):
    """Without their like."""
    return render(Document(blocks(records)), form)


def plain(*records):
    return text_in("plain", records)


def cells_of(text, first="linear", between="  "):
    """The cells of the rows from the first that begins so, to the next empty line, that are not empty."""
    lines = [line.strip("|").strip() for line in text.split("\n\n", 1)[1].splitlines()]
    start = next(place for place, line in enumerate(lines) if line.startswith(first))
    rows = lines[start : lines.index("", start)]
    return [[cell.strip() for cell in line.split(between) if cell.strip()] for line in rows]


def test_a_line_has_each_records_error_and_the_ratio():
    assert cells_of(plain(FIRST, OTHER)) == [
        ["linear", "normal", "te-fp8:delayed", "output", "3.8e-02", "4.2e-02", "1.10"],
        ["input grad.", "5.0e-02", "5.0e-02", "1.00"],
        ["-", "-", "te-fp8:mxfp8", "-", "unsupported [a]", "-", "-"],
    ]


def test_markdown_says_the_same_with_a_label_before_each_quantity():
    text = text_in("markdown", [FIRST, OTHER])
    heading, rule = text.splitlines()[2:4]
    assert [cell.strip() for cell in heading.strip("|").split("|")] == [
        *("layer", "input", "mode", "tensor", "p5en: error", "p5: error", "p5: ratio")
    ]
    assert rule.startswith("|---")
    assert cells_of(text, between="|")[1] == ["input grad.", "5.0e-02", "5.0e-02", "1.00"]


def test_the_title_names_every_machine_and_the_notes_say_why():
    text = plain(FIRST, OTHER)
    assert text.splitlines()[0] == (
        "numerics, width 1280, 2048 tokens, seed 0, on p5en (NVIDIA H100 80GB HBM3), p5 (NVIDIA H100 80GB HBM3)"
    )
    assert "\n[a] it needs another GPU\n" in text


def test_a_mode_refused_on_one_machine_shows_its_status_there():
    other = record(row("baseline-bf16"), refused("te-fp8:delayed"), instance="p5")
    rows = [line for line in cells_of(plain(FIRST, other)) if line[-2] == "unsupported [a]"]
    assert [line[-3:] for line in rows] == [["3.8e-02", "unsupported [a]", "-"], ["5.0e-02", "unsupported [a]", "-"]]


def test_how_far_they_agree_is_one_line():
    said = plain(FIRST, OTHER).splitlines()
    assert (
        "p5: 1 of 2 errors that both have are within 5 % of p5en's; the furthest is 1.10 times as large (linear, "
        "normal, te-fp8:delayed, output)."
    ) in said
    assert (
        "Errors are relative, against float64. ratio: the error over that of p5en, so that above 1 it is less exact "
        "than p5en."
    ) in said
    alike = plain(record(row(), instance="p5en"), record(row(), instance="p5"))
    assert "p5: the errors that both have, 1 of them, are all within 5 % of p5en's." in alike
    nothing = plain(record(row(), instance="p5en"), record(row("baseline-bf16"), instance="p5"))
    assert "p5 and p5en have no error in common." in nothing


def test_how_the_machines_differ_is_one_line():
    versions = {"torch": "2.11.0", "transformer-engine": "2.20.2"}
    other = record(row(), instance="p6", environment=environment("NVIDIA B200", versions=versions))
    assert (
        "p5en: NVIDIA H100 80GB HBM3, transformer-engine -; p6: NVIDIA B200, transformer-engine 2.20.2."
        in plain(FIRST, other).splitlines()
    )


def test_a_jump_with_the_same_answers_is_one_sentence():
    last = plain(FIRST, OTHER).splitlines()[-1]
    assert last == (
        f"A jump: values 100 times as large from step {UP_AT} to step {DOWN_AT}, {STEPS} steps, cast to e4m3. All ways "
        "of scaling answered alike, with worst errors within 5 % of each other."
    )


def test_of_a_jump_only_what_differs_has_a_line():
    late = AmaxJump(**{**history().model_dump(), "traces": (trace(back=DOWN_AT + 3), *history().traces[1:])})
    found = plain(FIRST, record(row(), instance="p5", history=late)).splitlines()
    assert found[-6].endswith("cast to e4m3. What was not alike:")
    assert found[-1].split() == [
        *("delayed,", "max", "of", "1024", "simulation", "steps", "to", "come", "back", ">", "4", "3")
    ]


def test_what_one_machine_could_not_try_is_a_dash():
    found = plain(FIRST, record(row(), instance="p5", measured=True)).splitlines()
    assert [line.split()[-2:] for line in found[-3:]] == [["-", "9.7e-01"]] * 3
    assert all("Transformer Engine" in line for line in found[-3:])


def test_two_of_one_instance_are_told_apart_by_their_moment():
    text = plain(FIRST, record(row(), instance="p5en", minutes=3))
    assert "on p5en 2026-05-01 10:00 (" in text.splitlines()[0]
    assert "p5en 2026-05-01 10:03: " in text


def test_a_record_alone_is_written_as_ever():
    assert plain(FIRST) == text_alone("plain", [FIRST])
    assert text_in("markdown", [FIRST]) == text_alone("markdown", [FIRST])


def test_works_of_two_kinds_stand_one_after_the_other_each_with_a_title():
    other = record(row(), instance="p4d", fingerprint=UNLIKE)
    text = plain(FIRST, other, OTHER)
    assert text.startswith(plain(FIRST, OTHER))
    own = "numerics, width 1280, 2048 tokens, seed 0, on p4d (NVIDIA H100 80GB HBM3)"
    assert text.endswith(f"{own}\n\n" + text_alone("plain", [other]))


def test_machines_get_every_record_by_itself():
    assert [one["instance"] for one in json.loads(text_in("json", [FIRST, OTHER]))] == ["p5en", "p5"]
    assert text_in("csv", [FIRST, OTHER]) == "\n".join(
        [text_in("csv", [FIRST]), *text_in("csv", [OTHER]).splitlines()[1:]]
    )


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        *((None, "-"), (0.0, "0.00"), (0.0123, "0.012"), (0.456, "0.46"), (1.0, "1.00"), (12.345, "12.35")),
        *((4321.0, "4,321"), (0.1, "0.10")),
    ],
)
def test_a_ratio_shows_two_digits_that_count(ratio, text):
    assert ratio_text(ratio) == text


@pytest.mark.parametrize("width", [80, 160])
def test_a_terminal_folds_names_where_it_is_narrow(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    modes = ("torchao-float8:rowwise_with_gw_hp", "te-fp8:delayed")
    rows = [row(mode, "linear", name, tensor) for mode in modes for name in ("normal", "outlier") for tensor in TENSORS]
    print(text_in("terminal", [record(*rows, instance=name) for name in ("p5en", "p5")]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert any("rowwise_with_gw_hp " in line for line in lines)
    assert sum(line.split()[-3:] == ["3.9e-02", "3.9e-02", "1.00"] for line in lines) == 6
    assert any("All ways of scaling answered alike" in line for line in lines)


def test_a_terminal_shows_what_differs_and_a_record_alone_as_ever(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    print(text_in("terminal", [FIRST, record(row(), instance="p5", measured=True)]))
    said = capsys.readouterr().out
    assert "What was not alike:" in said
    assert "[a] it needs another GPU" in said
    print(text_in("terminal", [FIRST]))
    shown = capsys.readouterr().out
    print(text_alone("terminal", [FIRST]))
    assert shown == capsys.readouterr().out


def test_a_terminal_titles_each_of_several_works(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    print(text_in("terminal", [FIRST, record(row(), instance="p4d", fingerprint=UNLIKE)]))
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" on ")[1].split()[0] for line in said if line.startswith("numerics,")] == ["p5en", "p4d"]
