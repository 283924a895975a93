"""What each option of Transformer Engine's layer gains: records of one mode with and without it, compared with
published figures.

    published.py   configs/published-switches.yaml
    rows.py        a row for each combination, compared with the layer that has none
    document.py    the table
"""
