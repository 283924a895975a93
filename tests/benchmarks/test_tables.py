"""Tables of a page are made again by the commands above them, and nothing else of it changes."""

import pytest
import tables

PAGE = """Before.

<!-- made by: fp8bench numerics formats --cast 0.3952 -->
an old table
<!-- end -->

After.
"""


def test_a_table_is_made_again_and_the_text_around_it_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert tables.rewrite(page) == 1
    before, made, after = page.read_text().partition(tables.printed("numerics formats --cast 0.3952"))
    assert before + "an old table" + after == PAGE
    assert made.startswith("|   value |")


def test_a_page_whose_tables_are_as_before_is_not_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    tables.rewrite(page)
    page.chmod(0o444)
    written = page.stat().st_mtime_ns
    assert tables.rewrite(page) == 1
    assert page.stat().st_mtime_ns == written


def test_a_command_that_fails_is_named_and_the_page_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("0.3952", "nothing"))
    with pytest.raises(SystemExit, match="fp8bench numerics formats --cast nothing"):
        tables.rewrite(page)
    assert "an old table" in page.read_text()
