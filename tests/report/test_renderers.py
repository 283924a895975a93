"""How a document is written: headings, names that are not repeated, what a terminal gets, and what differs."""

import pytest
from rich.console import Console

from fp8bench.report.document import Column, Document, Note, Sentence, Table, Warned, blocks
from fp8bench.report.render import FORMATS, PIPE, TERMINAL, render
from fp8bench.report.render.terminal import NAMELESS, print_table
from fp8bench.report.side_by_side import Difference, differences_line, said_by

ROWS = [("fc1", "bf16", "1.0"), ("fc1", "fp8", "0.5"), ("fc2", "fp8", "0.7")]


def columns_of(rows):
    layers, precisions, times = zip(*rows, strict=True)
    return (
        Column("layer", layers, "word", once=True),
        Column("precision", precisions, "word"),
        Column("time", times, of="p5 2026-05-01 10:00"),
    )


COLUMNS = columns_of(ROWS)
TABLE = Table(COLUMNS, naming=2, sections=1)


def text_of(table, form="plain"):
    return render(Document(((table,),)), form)


def printed(capsys, table, width):
    print_table(table, Console(width=width))
    return [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_label_stands_over_its_quantity_in_short_lines():
    lines = text_of(TABLE).splitlines()
    assert [line.split() for line in lines[:4]] == [["p5"], ["2026-05-01"], ["10:00"], ["layer", "precision", "time"]]


def test_markdown_has_its_headings_in_one_line():
    heading, rule, *_ = text_of(TABLE, "markdown").splitlines()
    assert [cell.strip() for cell in heading.strip("|").split("|")] == [
        *("layer", "precision", "p5 2026-05-01 10:00: time")
    ]
    assert set(rule) == {"|", "-"}


def test_a_name_is_not_repeated_but_the_last_one_always_stands():
    cells = [line.split() for line in text_of(TABLE).splitlines()[5:]]
    assert cells == [["fc1", "bf16", "1.0"], ["fp8", "0.5"], ["fc2", "fp8", "0.7"]]
    alike = Table(columns_of([ROWS[0], ROWS[0]]), naming=2)
    assert [line.split() for line in text_of(alike).splitlines()[5:]] == [
        ["fc1", "bf16", "1.0"],
        ["bf16", "1.0"],
    ]


def test_an_equal_name_under_another_one_is_repeated():
    layer, precision, time = columns_of([("fc1", "fp8", "1"), ("fc2", "fp8", "2")])
    casts = Column("casts", ("free", "free"), "word")
    table = Table((layer, precision._replace(once=True), casts, time), naming=3)
    cells = [line.split() for line in text_of(table).splitlines()[5:]]
    assert cells == [["fc1", "fp8", "free", "1"], ["fc2", "fp8", "free", "2"]]


def test_a_wide_terminal_has_one_table_and_a_narrow_one_a_table_a_section(capsys):
    whole = printed(capsys, TABLE, 80)
    assert [line.split() for line in whole[-3:]] == [["fc1", "bf16", "1.0"], ["fp8", "0.5"], ["fc2", "fp8", "0.7"]]
    apart = printed(capsys, TABLE, 30)
    assert [line for line in apart if line.startswith("fc")] == ["fc1", "fc2"]
    assert [line.split() for line in apart if line.startswith(("bf16", "fp8"))] == [
        *(["bf16", "1.0"], ["fp8", "0.5"], ["fp8", "0.7"])
    ]


def test_a_section_of_rows_without_a_name_says_what_it_is(capsys):
    columns = (*columns_of([ROWS[0], ("-", "fp8", "-")]), Column("more", ("x" * 20,) * 2))
    lines = printed(capsys, Table(columns, naming=2, sections=1), 40)
    assert NAMELESS in lines


def test_without_sections_a_narrow_terminal_splits_the_columns(capsys):
    columns = (*columns_of(ROWS[:1]), *(Column(name, ("x" * 20,)) for name in ("one", "two")))
    lines = printed(capsys, Table(columns, naming=2), 60)
    assert sum("precision" in line for line in lines) == 2
    assert all(any(name in line for line in lines) for name in ("time", "one", "two"))


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_colour_is_a_cells_own_and_only_where_colours_are_wanted(capsys, monkeypatch, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    columns = (*COLUMNS, Column("ratio", ("2.00x",) * 3, tones=("", "", "good")))
    print_table(Table(columns, naming=2), Console(width=80, force_terminal=True, color_system="standard"))
    lines = capsys.readouterr().out.splitlines()
    assert ["\x1b[32m" in line for line in lines if "2.00x" in line] == [False, False, coloured]


def test_what_differs_is_one_line_record_by_record():
    found = (Difference("", ("NVIDIA H200", "NVIDIA H100")), Difference("torchao", ("0.18", None)))
    assert differences_line(found, ("p5en", "p5")) == ["p5en: NVIDIA H200, torchao 0.18; p5: NVIDIA H100, torchao -."]
    assert differences_line((), ("p5en", "p5")) == []


def test_a_sentence_that_several_say_is_said_once():
    said = said_by(("a", "b", "c"), [["One.", "Two.", "Three."], ["One.", "Two."], ["One.", "Four."]])
    assert said == ["One.", "a, b: Two.", "a: Three.", "c: Four."]


def test_a_block_of_nothing_is_no_block():
    assert blocks([Sentence("One.")], [], [Note("two")]) == ((Sentence("One."),), (Note("two"),))


@pytest.mark.parametrize("form", [TERMINAL, PIPE, *(form for form in FORMATS if form != "csv")])
def test_every_format_renders_a_document_without_a_table(form):
    text = render(Document(((Sentence("One."), Note("two")),), data=["One."]), form)
    assert "One." in text
    assert not text.endswith("\n")


def test_a_warning_stands_in_text_and_is_left_to_standard_error_by_a_terminal():
    document = Document(((Sentence("One."), Warned("old")),))
    assert document.warnings == ("old",)
    assert render(document, PIPE) == "One.\nwarning: old"
    assert render(document, TERMINAL) == "One."


def test_a_tight_heading_is_folded_only_where_there_is_no_room(capsys):
    table = Table((Column("name", ("a",), "word"), Column("worst satu\u00adrated", ("1 %",))), tight=True)
    assert printed(capsys, table, 40)[0].split() == ["name", "worst", "saturated"]
    assert printed(capsys, table, 15)[:3] == ["worst", "satu-", "name  rated"]


def test_spare_columns_go_first_where_a_tight_table_does_not_fit(capsys):
    spare = Column("dB", ("28.0",), spare=True)
    table = Table((Column("mode", ("te-fp8:delayed",), "word"), Column("error", ("3.9e-02",)), spare), tight=True)
    assert "dB" in printed(capsys, table, 40)[0]
    assert printed(capsys, table, 28)[0].split() == ["mode", "error"]
