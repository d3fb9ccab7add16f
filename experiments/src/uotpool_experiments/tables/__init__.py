"""Tables of stored runs: a `TableSpec` says which, a `Kind` makes the `Table`, and `formats` makes the text."""

FORMATS = ("terminal", "markdown", "latex", "csv")
