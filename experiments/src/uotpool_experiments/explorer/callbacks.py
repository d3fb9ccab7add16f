"""The callbacks of the page. The server keeps no state: each request brings all that its callback needs."""

from __future__ import annotations

import math
from threading import Lock
from typing import Any

from dash import Dash, Input, Output, State, ctx, html, no_update

from uotpool.solvers import FORMULATIONS, SOLVERS
from uotpool_experiments.explorer import charts, compute, inputs, page
from uotpool_experiments.explorer.compute import Settings, Weights
from uotpool_experiments.explorer.inputs import InputError

KINDS = ("random", "rows", "images", "file")
CHOICES = {
    "kind": KINDS,
    "solver": tuple(SOLVERS),
    "formulation": FORMULATIONS,
    "p0": compute.PRIORS,
    "q0": compute.PRIORS,
    "view": charts.VIEWS,
}
CONTROLS = (
    *("alpha0", "alpha1", "alpha2", "rho", "K", "optimum", "suggested", "solver", "formulation", "p0", "q0"),
    *("kind", "seed", "samples", "features", "digit", "which", "view"),
)
CHARTS = ("input", "plan", "pooled", "q", "p", "pictures")
SHOWN = ("alpha0", "alpha1", "alpha2", "rho", "K")
ONE_AT_A_TIME = Lock()  # a dragged slider sends more requests at once than two cores can solve

# The browser does not send a file that is too large, but says so. (Base64 text has 4/3 of the bytes.)
CHOOSE = f"""
function(contents, name) {{
    if (contents === undefined || contents === null) return window.dash_clientside.no_update;
    const bytes = contents.length * 0.75;
    const kept = bytes > {inputs.MOST_BYTES + 100} ? null : contents;
    return {{name: name, bytes: bytes, contents: kept}};
}}
"""


def register(app: Dash) -> None:
    outputs = {
        "charts": {name: Output(f"{name}-chart", "figure") for name in CHARTS},
        "numbers": {name: Output(f"number-{name}", "children") for name in page.NUMBERS},
        "shown": {name: Output(f"{name}-shown", "children") for name in SHOWN},
        "log_n": Output("hint-divergence", "children"),
        "about": Output("about", "children"),
        "notes": Output("notes", "children"),
        "no_pictures": Output("pictures-row", "hidden"),
        "before": Output("before", "data"),
    }
    values = {name: Input(name, "value") for name in CONTROLS}
    files = {"loaded": Input("loaded", "data"), "before": State("before", "data")}
    app.callback(output=outputs, inputs={"values": values, **files})(update)

    app.callback(
        output={
            "random": Output("random-controls", "hidden"),
            "digit": Output("digit-controls", "hidden"),
            "file": Output("file-controls", "hidden"),
            "rho": Output("rho-row", "hidden"),
            "fixed_rho": Output("rho", "disabled"),
            "fixed_K": Output("K", "disabled"),
            "optimum": Output("optimum", "options"),
        },
        inputs={
            name: Input(name, "value") for name in ("kind", "solver", "formulation", "optimum", "suggested")
        },
    )(controls)

    app.callback(
        output=[
            *(Output(name, "value") for name in Weights._fields),
            Output("q0", "value"),
            Output("p0", "value"),
        ],
        inputs=[Input(f"preset-{name}", "n_clicks") for name in compute.PRESETS],
        prevent_initial_call=True,
    )(preset)

    app.clientside_callback(
        CHOOSE,
        Output("chosen", "data"),
        Input("upload", "contents"),
        State("upload", "filename"),
        prevent_initial_call=True,
    )
    app.callback(
        output=[Output("loaded", "data"), Output("upload-message", "children")],
        inputs=[Input("chosen", "data")],
        prevent_initial_call=True,
    )(load)


def preset(*clicks: int) -> list[Any]:
    chosen = compute.PRESETS[str(ctx.triggered_id).removeprefix("preset-")]
    powers = [page.ZERO if weight == 0 else math.log10(weight) for weight in chosen.weights]
    return [*powers, chosen.q0, "uniform"]


def controls(kind: Any, solver: Any, formulation: Any, optimum: Any, suggested: Any) -> dict[str, Any]:
    """Disable the controls that have no effect."""
    published = formulation == "paper"
    to_optimum = bool(optimum) and not published
    label = "as many as the optimum needs (exact only)"
    return {
        "random": kind != "random",
        "digit": kind not in ("rows", "images"),
        "file": kind != "file",
        "rho": solver == "sinkhorn" or to_optimum,
        "fixed_rho": bool(suggested),
        "fixed_K": to_optimum,
        "optimum": [{"label": label, "value": "yes", "disabled": published}],
    }


def load(chosen: Any) -> list[Any]:
    """Make a sound file the input; for any other one keep the input and show a message."""
    name = inputs.clean(chosen.get("name") if isinstance(chosen, dict) else "")
    try:
        if not isinstance(chosen, dict):
            raise InputError(f"expected {inputs.ACCEPTED}; got no content")
        count = chosen.get("bytes")
        if chosen.get("contents") is None and isinstance(count, (int, float)) and count > inputs.MOST_BYTES:
            raise inputs.too_large(count)
        X = inputs.parse_npy(inputs.decode(chosen.get("contents")))
    except InputError as error:
        return [no_update, html.Div(f"{name}: {error}. The input stays as it was.", className="note error")]
    text = f"Loaded {name}: {X.shape[0]} samples with {X.shape[1]} features."
    return [{"name": name, "contents": inputs.encode(X)}, html.Div(text, className="note good")]


def update(values: dict[str, Any], loaded: Any, before: Any) -> dict[str, Any]:
    """Return everything that the page shows; for a value that cannot be used, a message, and all else stays."""
    try:
        kind = choice(values, "kind")
        missing = kind == "file" and loaded is None
        if missing:
            kind = choice({"kind": before}, "kind")
        source = read_input(kind, values, loaded)
        settings = read_settings(values)
        view = choice(values, "view")
    except InputError as error:
        kept: dict[str, Any] = {
            "charts": dict.fromkeys(CHARTS, no_update),
            "numbers": dict.fromkeys(page.NUMBERS, no_update),
            "shown": dict.fromkeys(SHOWN, no_update),
        }
        kept |= dict.fromkeys(("log_n", "about", "no_pictures", "before"), no_update)
        return kept | {"notes": [html.Div(str(error), className="note error")]}
    with ONE_AT_A_TIME:
        result = compute.explore(source.X, settings)
    notes = [compute.Note("info", "No file yet: the input stays as it was.")] if missing else []
    notes += result.notes
    number = compute.number
    weights = settings.weights._asdict()
    shown = {name: f"{number(weight)}" for name, weight in weights.items()}
    shown["rho"] = "" if result.rho is None else number(result.rho)
    shown["K"] = f"{result.K}, optimum" if settings.K is None else str(result.K)
    measured = {"objective": result.objective, "gap": result.gap, "mass": result.mass}
    measured |= {"divergence": result.divergence, **result.distances}
    return {
        "charts": {
            "input": charts.input_chart(source.X, source.digit),
            "plan": charts.plan_chart(result, view, source.digit),
            "pooled": charts.pooled_chart(result),
            "q": charts.marginal_chart(result.q, result.q0, "sample n"),
            "p": charts.marginal_chart(result.p, result.p0, "feature d"),
            "pictures": charts.pictures_chart(result) if source.picture else {"data": [], "layout": {}},
        },
        "numbers": {name: number(measured[name]) for name in page.NUMBERS},
        "shown": shown,
        "log_n": f"0 is mean, log N = {math.log(len(source.X)):.2f} max pooling",
        "about": source.about,
        "notes": [html.Div(note.text, className=f"note {note.kind}") for note in notes],
        "no_pictures": not source.picture,
        "before": no_update if kind == "file" else kind,
    }


def choice(values: dict[str, Any], name: str) -> str:
    value = values[name]
    if not isinstance(value, str) or value not in CHOICES[name]:
        accepted = ", ".join(CHOICES[name])
        raise InputError(f"{name}: expected one of {accepted}, got {inputs.clean(repr(value))}")
    return value


def read_input(kind: str, values: dict[str, Any], loaded: Any) -> inputs.Input:
    if kind == "random":
        seed = inputs.whole("seed", values["seed"], 0, 2**31 - 1)
        N = inputs.whole("samples N", values["samples"], 1, inputs.MOST_SIDE)
        D = inputs.whole("features D", values["features"], 1, inputs.MOST_SIDE)
        return inputs.random_input(seed, N, D)
    if kind == "file":
        if not isinstance(loaded, dict):
            raise InputError(f"loaded: expected a file, got {inputs.clean(repr(loaded))}")
        X = inputs.parse_npy(inputs.decode(loaded.get("contents")))
        return inputs.Input(
            X, f"{len(X)} samples with {X.shape[1]} features from {inputs.clean(loaded.get('name'))}."
        )
    digit = inputs.whole("digit", values["digit"], 0, 9)
    which = inputs.whole("image", values["which"], 0, 170)
    return (inputs.digit_rows if kind == "rows" else inputs.digit_images)(digit, which)


def read_settings(values: dict[str, Any]) -> Settings:
    formulation = choice(values, "formulation")
    to_optimum = bool(values["optimum"]) and formulation == "exact"
    return Settings(
        Weights(*(_weight(name, values[name]) for name in Weights._fields)),
        choice(values, "solver"),
        formulation,
        None if to_optimum else inputs.whole("K", values["K"], 0, compute.MOST_MODULES),
        None if values["suggested"] else _weight("rho", values["rho"]),
        choice(values, "p0"),
        choice(values, "q0"),
    )


def _weight(name: str, power: Any) -> float:
    """Return the weight from the power of ten that a slider holds."""
    least = page.ZERO if name in page.MAY_BE_ZERO else page.LEAST
    if isinstance(power, bool) or not isinstance(power, (int, float)) or not least <= power <= page.MOST:
        raise InputError(
            f"{name}: expected a power of ten from {least:g} to {page.MOST:g}, got {inputs.clean(repr(power))}"
        )
    return 0.0 if name in page.MAY_BE_ZERO and power == page.ZERO else float(10.0**power)
