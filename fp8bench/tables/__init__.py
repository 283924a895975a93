"""Tables, csv, json, records side by side, notes and charts, from rows and columns: one engine for every study.

    TABLE = StudyTable(
        naming=(word("operation", lambda row: row.operation, once=True), word("size", lambda row: row.size)),
        columns=(Column("us (95 %)", lambda row: row.time_s, ",.1f", scale=1e6, interval=lambda row: row.time_ci_s),),
        beside=(...),                           # of each record, side by side
        key=lambda row: (row.operation, row.size),
        against=lambda row, first: (ratio(first.time_s / row.time_s), ""),
        refused=lambda row: (row.status, row.reason) if row.reason else None,
    )
    STUDY = Study(report=report_of, tables=(TABLE,), ...)
    print(render(STUDY.document(records, same_work(records), catalog), "markdown"))    # or plain, terminal, csv, json

`document`: what is shown, before it is text; `study`, also side by side; `written`:
numbers in words; `render`: all text (rich, tabulate); `chart`: figures as data, and what draws them (matplotlib);
`row_chart`: charts of rows; `page`: HTML.
"""
