"""A page of HTML that needs nothing beside itself, and the charts in it. Knows no kind of document."""
