"""What each command of the experiments does, in a line; imports nothing, for an install without the extra."""

SUMMARIES = {
    "demo": "train on embedded data and show a report: minutes",
    "run": "train and test one or a few poolings on a data set",
    "sweep": "the runs of a TOML file; a sweep that was stopped goes on",
    "table": "results from the store",
    "tables": "write all tables that a folder's tables.toml lists",
    "report": "one HTML page with tables, ranks and figures",
    "export": "the runs in the store as CSV, a line each",
    "figure": "draw a figure of the paper again, as PNG and SVG",
    "datasets": "known data sets, which are here, their statistics",
    "explore": "a local page: move the weights and watch the plan",
}
EXTRAS = {"explore": "explore"}  # the others need `experiments`


def extra(command: str) -> str:
    """The extra that a command needs."""
    return EXTRAS.get(command, "experiments")
