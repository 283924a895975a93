"""A self-contained page of HTML, and the charts in it. These modules know no kind of document."""
