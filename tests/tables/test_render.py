"""How a document is written in every format, and how records side by side are named and differ."""

from datetime import timedelta

import pytest
from builders import at, environment, machine_called
from hypothesis import given
from hypothesis import strategies as st
from report.made_gemm import H200, gemm_record

from fp8bench.tables.document import Cells, Document, Hint, Letters, Note, Sentence, Table, Text, Warned, blocks, notes
from fp8bench.tables.render import FORMATS, PIPE, TERMINAL, csv_cell, drawn_of, fitted, markdown, render
from fp8bench.tables.study import Column, differences_line, labels, table_of, where, word
from fp8bench.tables.written import brief_count, change, low_to_high, rate, time_said, with_interval

ROWS = [("fc1", "bf16", "1.0"), ("fc1", "fp8", "0.5"), ("fc2", "fp8", "0.7")]
MODE = Cells("mode", ("torchao-float8:rowwise", "te-fp8, CUDA graph"), "word")
STEP = Cells("step, ms (95 %)", ("349 (347-350)", "-"), "quantity", spare=True)
NOTES = Cells("notes", ("published Pareto [a b]", ""), "note")
TABLE = Table((MODE, STEP, NOTES), whole=True)


def columns_of(rows):
    layers, precisions, times = zip(*rows, strict=True)
    named = Cells("layer", layers, "word", once=True), Cells("precision", precisions, "word")
    return (*named, Cells("time", times, of="p5 2026-05-01 10:00"))


def text_of(table, form=PIPE):
    return render(Document(((table,),)), form)


def words_of(table):
    return [line.split() for line in text_of(table).splitlines()]


def width_of(cells):
    return max(len(line) for text in (cells.heading, *cells.texts) for line in text.split("\n"))


def test_a_record_stands_over_its_quantity_in_short_lines_and_a_name_is_repeated_where_one_before_it_differs():
    layer, precision, time = columns_of([("fc1", "fp8", "1"), ("fc2", "fp8", "2")])
    lines = words_of(Table((layer, precision._replace(once=True), time)))
    assert lines[:4] == [["p5"], ["2026-05-01"], ["10:00"], ["layer", "precision", "time"]]
    assert lines[5:] == [["fc1", "fp8", "1"], ["fc2", "fp8", "2"]]
    assert words_of(Table(columns_of(ROWS)))[5:7] == [["fc1", "bf16", "1.0"], ["fp8", "0.5"]]


@given(st.integers(30, 70))
def test_what_does_not_is_folded_into_the_width_and_loses_nothing(width):
    folded, omitted = fitted(TABLE, width)
    assert sum(map(width_of, folded.columns)) + 2 * (len(folded.columns) - 1) <= width
    kept = [one for one in TABLE.columns if one.heading not in omitted]
    for before, after in zip(kept, folded.columns, strict=True):
        squeezed = [text.replace("\n", "").replace(" ", "") for text in after.texts]
        assert squeezed == [text.replace(" ", "") for text in before.texts]


def test_what_fits_stays_then_names_are_folded_after_a_colon_and_a_spare_column_without_room_is_left_out_and_named():
    assert fitted(TABLE, width_of(MODE) + width_of(STEP) + width_of(NOTES) + 4) == (TABLE, ())
    narrow, omitted = fitted(TABLE, 42)
    folded = ("torchao-float8:\nrowwise", "349 (347-350)", "published\nPareto\n[a b]")
    assert (tuple(one.texts[0] for one in narrow.columns), omitted) == (folded, ())
    assert narrow.columns[0].texts[1] == "te-fp8,\nCUDA graph"
    narrow, omitted = fitted(TABLE, 30)
    assert ([one.heading for one in narrow.columns], omitted) == (["mode", "notes"], ("step, ms (95 %)",))
    assert len(fitted(TABLE, 5)[0].columns) == 2


def test_a_pipe_folds_a_table_that_is_never_divided_and_the_texts_beside_it_and_says_what_it_omitted():
    beside = render(Document(((TABLE, Sentence("word " * 40)),)), PIPE).splitlines()
    assert (max(map(len, beside)), beside[-1][:3]) == (79, "  w")
    long = [Cells(f"a heading of words {place}", ("word " * 9, "y"), "word", spare=place > 5) for place in range(12)]
    text = text_of(Table((MODE, *long), whole=True))
    assert max(map(len, text.splitlines())) <= 80
    assert "\nNo room for: a heading of words" in text


@pytest.mark.parametrize("form", [PIPE, TERMINAL])
@pytest.mark.parametrize("width", [60, 80])
def test_columns_is_the_width_of_all_that_is_printed(form, width, monkeypatch):
    said, table = "word " * 40, Table((MODE, STEP, NOTES, MODE))
    assert max(map(len, render(Document(((table, Sentence(said)),)), PIPE).splitlines())) == 199
    monkeypatch.setenv("COLUMNS", str(width))
    parts = table, *(kind(said) for kind in (Sentence, Hint, Note, Warned))
    lines = render(Document((parts,)), form).splitlines()
    assert width - 5 <= max(len(line.rstrip()) for line in lines) <= width
    assert sum(line.startswith("  word") for line in lines) >= 4


def test_a_narrow_terminal_folds_then_divides_the_columns(monkeypatch):
    columns = (*columns_of(ROWS[:1]), *(Cells(name, ("x" * 20,)) for name in ("one", "two")))

    def printed(width, **looks):
        monkeypatch.setenv("COLUMNS", str(width))
        return text_of(Table(columns, naming=2, **looks), TERMINAL).splitlines()

    assert sum("precision" in line for line in printed(80)) == 1
    lines = printed(60, numbered=True)
    assert sum("precision" in line and line.startswith("#") for line in lines) == 2
    assert all(any(name in line for line in lines) for name in ("time", "one", "two"))
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize(("every", "naming", "headings"), [(False, 1, "mode step"), (True, 2, "mode recipe step gain")])
def test_a_column_that_says_nothing_is_omitted_unless_every_one_is_asked_for(every, naming, headings):
    columns = (word("mode", str), word("recipe", lambda _: None), Column("step", len, "d"), word("gain", lambda _: ""))
    table = table_of(columns, ["te", "bf16"], 2, lambda mode: "strong" if mode == "te" else "", every)
    assert (" ".join(one.heading for one in table.columns), table.naming) == (headings, naming)
    assert ([row[naming] for row in table.rows()], table.emphasis) == (["2", "4"], ("strong", ""))


@pytest.mark.parametrize("coloured", [True, False])
def test_a_colour_is_a_cells_own_and_only_where_colours_are_wanted(monkeypatch, coloured):
    for name, value in {"NO_COLOR": "" if coloured else "1", "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    columns = (*columns_of(ROWS), Cells("ratio", ("2.00x",) * 3, tones=("", "", "good")))
    lines = text_of(Table(columns, naming=2), TERMINAL).splitlines()
    assert ["\x1b[32m" in line for line in lines if "2.00x" in line] == [False, False, coloured]


@pytest.mark.parametrize("form", [TERMINAL, PIPE, *(form for form in FORMATS if form != "csv")])
def test_every_format_renders_a_document_without_a_table(form):
    text = render(Document(((Sentence("One."), Note("two")),), data=["One."]), form)
    assert "One." in text
    assert not text.endswith("\n")


@pytest.mark.parametrize("kind", [*Text.__subclasses__(), *Sentence.__subclasses__()])
def test_a_terminal_shows_every_kind_of_text(kind):
    assert render(Document(((kind("One."),),)), TERMINAL).endswith("One.")


@pytest.mark.parametrize("form", [TERMINAL, PIPE, "markdown"])
def test_a_warning_stands_in_text(form):
    document = Document(((Sentence("One."), Warned("old")),))
    assert document.warnings == ("old",)
    assert [line for line in render(document, form).splitlines() if line] == ["One.", "warning: old"]


def test_a_block_of_nothing_is_no_block_and_a_note_stands_where_its_condition_holds():
    assert blocks([Sentence("One.")], [], [Note("two")]) == ((Sentence("One."),), (Note("two"),))
    assert notes((True, "one"), ([], "two"), ("x", "three")) == [Note("one"), Note("three")]


def test_equal_texts_share_a_letter_and_after_z_comes_aa():
    letters = Letters()
    for text in ("why", "why", *map(str, range(26))):
        letters.of(text)
    assert letters.refer("invalid", "why") == "invalid [a]"
    assert letters.of("25") == "aa"
    assert letters.lines()[:2] == ["[a] why", "[b] 0"]


@given(st.text(max_size=30))
def test_what_comes_from_a_record_is_inert_in_every_form(text):
    table = Table((Cells(text, (text,), "word", of=text),), whole=True)
    for form in (PIPE, TERMINAL, "markdown", "latex"):
        assert not set("\x1b\x07\u202e") & set(text_of(table, form))
    assert drawn_of(table).height == 1


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("50 % of a_b & $x {y} #1", r"50 \% of a\_b \& \$x \{y\} \#1"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("~x^2 <b> a|b", r"\textasciitilde{}x\textasciicircum{}2 $<$b$>$ a$|$b"),
        ("--cuda-graphs off", "-{}-cuda-graphs off"),
        ("1.0 ms ±0.3 % ≈2", r"1.0 ms $\pm$0.3 \% $\approx$2"),
    ],
)
def test_no_text_is_a_command_of_latex(text, escaped):
    assert render(Document(((Sentence(text),),)), "latex") == escaped
    assert escaped in text_of(Table((Cells("x", (text,), "word"),)), "latex")


def hundredths(low, high):
    return low_to_high(low, high, "{:.2f}".format)


@pytest.mark.parametrize(
    ("write", "values", "written"),
    [
        # What markdown would read is written out, and a text that a spreadsheet would compute begins with a quote.
        (markdown, ("a|b",), "a\\|b"),
        (markdown, ("a\\|b",), "a\\\\\\|b"),
        (markdown, ("<b>",), "&lt;b>"),
        (markdown, ("[x](y)",), "[x]\\(y)"),
        (markdown, ("invalid [a], 3 % (standard deviation)",), "invalid [a], 3 % (standard deviation)"),
        *((csv_cell, (text,), f"'{text}") for text in ("=1+1", "+1", "-1", "@x", "\n=1", "\uff1d1")),
        *((csv_cell, (text,), "' =1") for text in (" =1", "\t=1", "\r=1")),
        *((csv_cell, (value,), value) for value in (-0.5, None, True, "te-fp8", "two\nlines")),
        (csv_cell, ((-0.05, -0.03),), "-0.05; -0.03"),
        (csv_cell, (["=a", "b"],), "'=a; b"),
        # Ends that tell nothing are no ends, but a difference below 0 keeps both; nor is a gain told without a bound.
        (hundredths, (1.0, 2.0), "1.00-2.00"),
        (hundredths, (0.004, 0.2), "at most 0.20"),
        (hundredths, (0.0, 2.0), "at most 2.00"),
        (hundredths, (1e-6, 2.0), "not bounded"),
        (hundredths, (-0.07, -0.05), "-0.07 to -0.05"),
        (hundredths, (-0.07, 0.02), "-0.07 to 0.02"),
        # Each end has digits of its own.
        (with_interval, (93.1e-6, (27.9e-6, 1500.4e-6), rate, 1e6), "93.1 (27.9-1,500)"),
        *((with_interval, (value, None, rate), said) for value, said in ((0.00106, "0.00106"), (None, "-"))),
        (change, (0.25, (0.2, 0.3)), "+25.0 % (+20.0 to +30.0)"),
        (change, (-0.5, (-0.9999, 0.01)), "-50.0 % (not bounded)"),
        (change, (0.1, (-1.0, 0.3)), "+10.0 % (at most +30.0)"),
        # A change that reads as none has no minus.
        (change, (-0.0002, (-0.0004, 0.012)), "+0.0 % (+0.0 to +1.2)"),
        (change, (-0.0006, None), "-0.1 %"),
        *((brief_count, (count,), text) for count, text in ((800, "800"), (34e3, "34.0 k"), (90e6, "90.0 M"))),
        *((brief_count, (count,), text) for count, text in ((2.5e9, "2.50 B"), (1e13, "10.0 T"))),
        *((time_said, (hours,), text) for hours, text in ((0.379, "22.7 min"), (34.06, "34.1 h"), (124.8, "5.2 days"))),
    ],
)
def test_what_is_written_of_a_value(write, values, written):
    assert write(*values) == written


def record(instance="p5", minutes=0.0, **changes):
    return gemm_record(instance=instance, created_utc=at(minutes), **changes)


SOON = record(run_id="soon").model_copy(update={"created_utc": at(0) + timedelta(seconds=3)})


@pytest.mark.parametrize(
    ("records", "names"),
    [
        ([record(), record("p4d")], ("p5", "p4d")),
        ([record(), record(minutes=7), record("p4d")], ("p5 2026-05-01 10:00", "p5 2026-05-01 10:07", "p4d")),
        ([record(), SOON], ("p5 2026-05-01 10:00:00", "p5 2026-05-01 10:00:03")),
        ([record(run_id="one"), record(run_id="two")], ("p5 one", "p5 two")),
    ],
)
def test_a_record_is_called_by_its_instance_and_by_as_much_of_its_time_as_tells_it_apart(records, names):
    assert labels(records) == names


def on(*device, **changes):
    return record(environment=environment(*(device or (H200,)), **changes))


EPYC, XEON = on(None, cpu="an Epyc"), on(None, cpu="a Xeon")
HERE, THERE = machine_called("vendor-a"), machine_called(None)
TE = "transformer-engine"


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([record(), on(python="3.13.1", versions={"torch": "2.11.0", "numpy": "1"})], []),
        ([record(), on("NVIDIA H100")], [f"a: {H200}; b: NVIDIA H100."]),
        ([record(), on(versions={"torch": "2.12.0"})], ["a: torch 2.11.0; b: torch 2.12.0."]),
        ([on(versions={"cuda": "13.0"}), on(versions={"cuda": "12.8"})], ["a: cuda 13.0; b: cuda 12.8."]),
        ([on(versions={}), on(versions={"torchao": "0.18"})], ["a: torchao -; b: torchao 0.18."]),
        ([on(versions={}), on(versions={"transformer-engine": "2.20"})], [f"a: {TE} -; b: {TE} 2.20."]),
        ([record(), on(driver="570.1")], ["a: driver 580.0; b: driver 570.1."]),
        ([EPYC, XEON], ["a: an Epyc; b: a Xeon."]),
        (
            [record(machine=HERE), record(machine=THERE), record()],
            [f"a: machine vendor-a ({HERE.id}); b: machine {THERE.id}; c: machine -."],
        ),
        ([record(machine=HERE), record("p4d", machine=THERE)], []),
        # Of an unknown machine nothing is guessed.
        ([record(), record(environment=None)], [f"a: {H200}, torch 2.11.0, driver 580.0; b: -, torch -, driver -."]),
    ],
)
def test_what_differs_between_machines_is_told_if_it_moves_numbers(records, found):
    assert differences_line(records, "abc"[: len(records)]) == found


def test_records_without_a_gpu_are_of_a_cpu():
    assert where([record(), EPYC, record(environment=None)], "abc") == f"a ({H200}), b (CPU), c (CPU)"
