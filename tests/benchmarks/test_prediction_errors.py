"""What is kept of predictions' errors is of the committed records alone, and survives a failure."""

import prediction_errors
import pytest

from fp8bench.predict.held_out import kept


def test_what_was_kept_before_is_no_part_of_what_is_kept_now(tmp_path, monkeypatch):
    file = tmp_path / "kept.json"
    file.write_text("of another format")
    seen = []

    def printed(_command, form):
        seen.append((form, kept(file)))
        return "new"

    monkeypatch.setattr(prediction_errors, "printed", printed)
    assert prediction_errors.of_records_alone(file) == "new\n"
    ((form, before),) = seen
    assert (form, before.cases, before.pairs) == ("json", (), ())


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path, monkeypatch):
    page, file = tmp_path / "page.md", tmp_path / "kept.json"
    page.write_text("no table\n")
    file.write_text("as it was")
    monkeypatch.setattr(prediction_errors, "printed", lambda _command, _form: "new")
    with pytest.raises(SystemExit, match="has 0 places for the table, not 1"):
        prediction_errors.main(page, file)


def test_where_it_fails_the_file_is_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "kept.json"
    file.write_text("as it was")

    def fails(_command, _form):
        raise SystemExit("no")

    monkeypatch.setattr(prediction_errors, "printed", fails)
    with pytest.raises(SystemExit):
        prediction_errors.of_records_alone(file)
    assert file.read_text() == "as it was"
