"""Tables of stored runs: a `TableSpec` says which, a `Kind` makes a `Table` of it, and `formats` makes text."""

FORMATS = ("terminal", "markdown", "latex", "csv")
