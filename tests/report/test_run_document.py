"""A comparison with every column in every format, against the files in golden/; test_brief_table.py has the short one.

REGENERATE_GOLDEN=1 writes those files anew; only then, and for a change of looks that is meant.
"""

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
from report.made_rows import made_up_comparison, row

from fp8bench.kinds.run.document import columns, document
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.kinds.view import View
from fp8bench.stats.certainty import unseen_share
from fp8bench.tables.render import render

GOLDEN = Path(__file__).parent / "golden"
REGENERATE = os.environ.get("REGENERATE_GOLDEN") == "1"
WIDE = View(wide=True)
NUMBER = re.compile(r"-?\b\d+\.\d+(?:e-?\d+)?\b")
JSON_KEYS = {
    "instance",
    "mode",
    "status",
    "source",
    "workload",
    "batch_size",
    "world_size",
    "compile",
    "execution",
    "cause",
    "step_time_s",
    "step_time_ci_s",
    "throughput_per_s",
    "unit",
    "usd_per_hour",
    "price_as_of",
    "units_per_usd",
    "usd_per_million_units",
    "gain_vs_reference",
    "speedup_vs_reference",
    "break_even_usd_per_hour",
    "peak_memory_bytes",
    "mfu_bf16",
}


def text_in(form: str, comparison: Comparison) -> str:
    return render(document(comparison, view=WIDE), form)


def plain_lines(*rows: Row) -> list[str]:
    return text_in("plain", Comparison(rows=rows)).splitlines()


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("comparison.md", "markdown"),
        ("comparison.txt", "plain"),
        ("comparison.csv", "csv"),
        ("comparison.json", "json"),
    ],
)
def test_the_text_is_that_of_the_golden_file(name: str, form: str):
    text = text_in(form, made_up_comparison()) + "\n"
    if REGENERATE:
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(text, encoding="utf-8")

    golden = (GOLDEN / name).read_text(encoding="utf-8")
    assert NUMBER.sub("#", text) == NUMBER.sub("#", golden)
    # Another CPU adds in another order, so that the last digits of an interval may differ.
    assert list(map(float, NUMBER.findall(text))) == pytest.approx(list(map(float, NUMBER.findall(golden))), rel=1e-9)


def test_json_is_a_list_of_rows_with_the_promised_keys():
    rows = json.loads(text_in("json", made_up_comparison()))

    assert isinstance(rows, list)
    assert len(rows) == 13
    assert all(set(one) >= JSON_KEYS for one in rows)


def test_json_numbers_are_the_rows_own_and_unknown_is_null():
    comparison = made_up_comparison()
    written = json.loads(text_in("json", comparison))

    assert [one["units_per_usd"] for one in written] == [one.units_per_usd for one in comparison.rows]
    assert {one["step_time_s"] for one in written if one["status"] != "ok"} == {None}
    assert {one["price_as_of"] for one in written} == {"2026-05-01", "2026-06-15", "2025-01-01", None}


def test_csv_reads_back_with_the_numbers_of_the_json():
    comparison = made_up_comparison()
    read = list(csv.DictReader(io.StringIO(text_in("csv", comparison))))
    written = json.loads(text_in("json", comparison))

    assert len(read) == len(written)
    for line, one in zip(read, written, strict=True):
        assert set(line) == set(one)
        assert line["run_id"] == one["run_id"]
        for name in ("step_time_s", "throughput_per_s", "units_per_usd", "gain_vs_reference"):
            assert (float(line[name]) if line[name] else None) == one[name]
        assert line["marks"] == "; ".join(one["marks"])


def test_csv_keeps_commas_quotes_and_line_breaks_of_a_reason():
    reason = 'it said: "no", twice\nand stopped'
    (line,) = csv.DictReader(io.StringIO(text_in("csv", Comparison(rows=(row(status="failed", reason=reason),)))))

    assert line["reason"] == reason


def test_equal_footnotes_share_a_letter_and_others_get_the_next():
    lines = plain_lines(
        row(status="unsupported", reason="this GPU has no fp8 unit", mode="te-fp8"),
        row(status="invalid", reason="the gradient is 0", mode="te-bf16"),
        row(status="unsupported", reason="this GPU has no fp8 unit", mode="torchao-float8"),
    )

    assert [line.rstrip().rpartition("  ")[2] for line in lines[2:5]] == [
        "unsupported [a]",
        "invalid [b]",
        "unsupported [a]",
    ]
    assert lines[5:] == ["[a] this GPU has no fp8 unit", "[b] the gradient is 0"]


def test_short_marks_stand_in_the_row_and_long_ones_under_the_table():
    lines = plain_lines(
        row(marks=("external", "undated price", "share of p5: 1 of 8 GPUs, since no price of my-box is known"))
    )

    assert lines[2].endswith("external, undated price [a]")
    assert lines[3:] == ["[a] share of p5: 1 of 8 GPUs, since no price of my-box is known"]


def test_more_footnotes_than_letters_still_have_a_mark_each():
    rows = [row(status="failed", reason=f"reason number {number:02d}") for number in range(30)]
    lines = plain_lines(*rows)

    assert lines[-30:][:2] == ["[a] reason number 00", "[b] reason number 01"]
    assert lines[-4:][0] == "[aa] reason number 26"
    assert len({line.split()[0] for line in lines[-30:]}) == 30


def test_a_table_without_notes_has_no_footnotes():
    assert len(plain_lines(row(), row())) == 4


def test_the_headings_name_the_unit_of_the_rows():
    images, tokens = row(unit="images"), row(unit="tokens")

    assert "tokens/USD" in plain_lines(tokens)[0]
    assert "images/USD" in plain_lines(images)[0]
    assert "units/USD" in plain_lines(images, tokens)[0]


@pytest.mark.parametrize(
    ("workloads", "heading"),
    [
        (("llm-micro",), "tokens/USD"),
        (("vit-huge", "timm:resnet50"), "images/USD"),
        (("vit-huge", "llm-1b"), "units/USD"),
        (("of-a-plug-in",), "units/USD"),
    ],
    ids=["tokens", "images", "both", "unknown"],
)
def test_the_headings_name_the_unit_of_the_workload_where_no_row_ran(workloads, heading):
    rows = [row(workload=name, status="failed", reason="it broke", unit=None) for name in workloads]
    assert heading in plain_lines(*rows)[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (3.14159, "3.14"), (25.0, "25"), (99.44, "99.4"), (100.4, "100"), (12_345.6, "12,346")],
)
def test_a_small_rate_has_three_digits_and_a_large_one_is_a_whole_number(value, text):
    (rate,) = plain_lines(row(throughput_per_s=value))[2:]
    (per_usd,) = plain_lines(row(units_per_usd=value))[2:]

    assert text in rate.split()
    assert text in per_usd.split()


def test_what_is_unknown_is_a_dash_and_a_price_without_a_date_says_so():
    (line,) = plain_lines(row(compile=None, execution=None, attention=None))[2:]
    (undated,) = plain_lines(row(usd_per_hour=40.0))[2:]

    assert line.split() == ["p5", "te-fp8:delayed", "64", "x", "8", "1", *["-"] * 10]
    assert "undated" in undated


def test_a_column_with_nothing_to_say_is_left_out_and_comes_back_with_the_first_row_that_has_it():
    silent, telling = row(joules_per_unit=None), row(joules_per_unit=1.53, unit="images")

    assert "J/" not in text_in("plain", Comparison(rows=(silent,)))
    assert "J/image" in text_in("plain", Comparison(rows=(silent, telling)))


def test_a_loss_has_its_sign_and_the_reference_says_that_it_is_one():
    (loss,) = plain_lines(row(gain_vs_reference=-0.3133))[2:]
    (gain,) = plain_lines(row(gain_vs_reference=0.05))[2:]
    (reference,) = plain_lines(row(gain_vs_reference=0.0, is_reference=True))[2:]

    assert "-31.3 %" in loss
    assert "+5.0 %" in gain
    assert "reference" in reference


def test_a_gain_stands_with_its_interval_and_the_verdict_on_it_with_its_reason_under_the_table():
    judged = row(
        gain_vs_reference=0.05,
        gain_ci_vs_reference=(-0.012, 0.11),
        verdict="inconclusive",
        verdict_on="units_per_usd",
        verdict_why="the interval holds a difference of less than 1 %",
    )
    lines = plain_lines(judged)

    assert "+5.0 % (-1.2 to +11.0)  inconclusive" in lines[2]
    assert lines[3:] == ["[a] inconclusive: the interval holds a difference of less than 1 %"]


def test_warnings_stand_in_every_format_and_under_the_table():
    warnings = ("prices are old", "no reference")
    comparison = Comparison(rows=(row(warnings=warnings),), warnings=warnings)
    (line,) = csv.DictReader(io.StringIO(text_in("csv", comparison)))

    assert text_in("plain", comparison).splitlines()[3:] == ["warning: prices are old", "warning: no reference"]
    assert text_in("markdown", comparison).split("\n\n")[1:] == ["warning: prices are old", "warning: no reference"]
    assert json.loads(text_in("json", comparison))[0]["warnings"] == list(warnings)
    assert line["warnings"] == "prices are old; no reference"


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ((3, 3), "With 3 processes a row, a state that fewer than 63 % of processes have"),
        ((6, 2), "With 2 processes (the fewest of these rows), a state that fewer than 78 % of processes have"),
        ((1,), "With 1 process a row, a state that fewer than 95 % of processes have"),
    ],
)
def test_what_so_few_processes_cannot_show_is_said_in_one_line(rounds, words):
    rows = [row(rounds=count, unseen_share=unseen_share(count)) for count in rounds]
    *_, last = plain_lines(*rows, row(status="failed", reason="it broke"))

    assert last.startswith(words)
    assert "--rounds" in last


def test_short_marks_stand_in_the_row_while_they_are_few():
    lines = plain_lines(row(marks=tuple(f"a mark of its own {number}" for number in range(4))))

    assert lines[2].endswith("a mark of its own 0, a mark of its own 1 [a] [b]")
    assert lines[3:] == ["[a] a mark of its own 2", "[b] a mark of its own 3"]


def test_markdown_keeps_footnotes_apart_from_the_table():
    text = text_in("markdown", Comparison(rows=(row(status="failed", reason="rank 1 died: ended by SIGKILL"),)))
    table, *notes = text.split("\n\n")

    assert all(line.startswith("|") and line.endswith("|") for line in table.splitlines())
    assert notes == ["[a] rank 1 died: ended by SIGKILL"]


@pytest.mark.parametrize("width", [80, 120, 160, 240])
def test_the_terminal_table_shows_every_instance_mode_and_footnote(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    comparison = made_up_comparison()
    print(text_in("terminal", comparison))
    printed = capsys.readouterr().out

    assert max(len(line) for line in printed.splitlines()) <= width
    for one in comparison.rows:
        assert any(one.instance in line and one.mode_label in line for line in printed.splitlines()), one.mode_label
    assert all(column.heading in printed for column in columns(comparison.rows))
    assert "[a] " in printed
    assert "fp8 needs compute capability 8.9" in printed


def test_a_narrower_terminal_gets_more_tables_each_of_which_names_its_row(monkeypatch, capsys):
    one = row(unit="images")

    def headings(width: int) -> list[list[str]]:
        """Of each table; every one of them has the row, with its number where there are several."""
        monkeypatch.setenv("COLUMNS", str(width))
        print(text_in("terminal", Comparison(rows=(one,))))
        lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
        found = [line for line in lines if "instance" in line]
        naming = ["instance", "mode"] if len(found) == 1 else ["#", "instance", "mode"]
        this_row = ["p5", "te-fp8:delayed"] if len(found) == 1 else ["1", "p5", "te-fp8:delayed"]
        assert all(line[: len(naming)] == naming for line in found)
        assert len([line for line in lines if line[: len(this_row)] == this_row]) == len(found)
        return [line[len(naming) :] for line in found]

    every = [*(column.heading for column in columns([one])[2:]), "notes"]
    for width, count in [(320, 1), (190, 2), (80, 5)]:
        found = headings(width)
        assert len(found) == count
        assert [heading for table in found for heading in table] == every


def test_the_terminal_table_has_no_escape_codes_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    print(text_in("terminal", made_up_comparison()))

    assert "\x1b" not in capsys.readouterr().out
