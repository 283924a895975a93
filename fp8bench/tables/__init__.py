"""Tables, csv, json, records side by side, notes and charts, from rows and columns: one engine for every study.

A study says what its rows are and what its columns show; everything else is made here:

    COLUMNS = (
        Column("us (95 %)", lambda row: row.time_s, ",.1f", scale=1e6, interval=lambda row: row.time_ci_s),
        Column("GB/s", lambda row: row.bus_gb_s, gb_s, better="more"),
    )
    TABLE = StudyTable(
        naming=(word("operation", lambda row: row.operation, once=True), word("size", lambda row: row.size)),
        columns=COLUMNS,                        # of one record; `-` for None; columns that say nothing are omitted
        beside=COLUMNS,                         # of each record, side by side
        key=lambda row: (row.operation, row.size),
        against=lambda row, first: (ratio(first.time_s / row.time_s), ""),
        refused=lambda row: (row.status, row.reason) if row.reason else None,
    )
    STUDY = Study(
        report=report_of,                       # record, catalogue -> a pydantic model: the json of a record
        title=lambda reports, where: f"Collectives on {where}",
        tables=(Shown(table=lambda _reports: TABLE, rows=lambda report: report.rows),),
        found=answers, notes=how_to_read,       # sentences of one record; how to read the tables
        lines=lambda reports: CsvLines.of(Row, [row for one in reports for row in one.rows]),
        figures=(("bandwidth", draw),),
    )
    document = STUDY.document(same_work(records), catalog)
    print(render(document, "markdown"))         # or plain, terminal, csv, json

Tables of other shapes are made of `Column.cells(rows)` and `document.Table`; `study.beside` joins any rows by a key.
Modules: `document` (what is shown, before it is text), `study`, `side_by_side` (how records are named and differ),
`written` (numbers in words), `render` (all text; rich and tabulate live there), `chart` (all pictures; matplotlib),
`page` (HTML).
"""
