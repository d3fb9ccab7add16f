"""The layout of the page."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from uotpool_experiments.explorer import charts
from uotpool_experiments.explorer.compute import MOST_MODULES
from uotpool_experiments.explorer.inputs import ACCEPTED, MOST_SIDE

# Sliders hold the power of ten. The left end of a slider that allows 0 means 0.
LEAST, MOST, ZERO = -5.0, 6.0, -6.0
MARKS = {-4: "1e-4", -2: "0.01", 0: "1", 2: "100", 4: "1e4", 6: "1e6"}
START = {"alpha0": -1.0, "alpha1": 0.0, "alpha2": 0.0, "rho": 0.0}
MAY_BE_ZERO = ("alpha1", "alpha2")

WEIGHTS = {
    "alpha0": (
        "Smoothness α₀",
        "Large: the plan is spread as evenly as the priors let it. Small: it takes the largest entries of X.",
    ),
    "alpha1": ("Pull to the feature prior α₁", "Large: each feature gets the mass that its prior p₀ asks for."),
    "alpha2": (
        "Pull to the sample prior α₂",
        "Large: each sample gets the mass that its prior q₀ asks for. 0: samples compete freely.",
    ),
}
NUMBERS = {
    "objective": ("objective", "what the plan should make small"),
    "gap": ("duality gap", "the objective is at most this far above the optimum"),
    "mass": ("mass of P", "should be 1"),
    "divergence": ("nats from mean", "0 is mean pooling"),
    "mean": ("to mean", "largest difference from mean pooling"),
    "max": ("to max", "largest difference from max pooling"),
    "attention": ("to attention", "largest difference from attention pooling"),
}
PRIORS = [{"label": "uniform", "value": "uniform"}, {"label": "softmax of norms", "value": "norms"}]


def layout() -> Any:
    return html.Div(
        [
            _header(),
            html.Div(
                [html.Div([_weights(), _input(), _solver(), _priors()], className="controls"), _views()],
                className="columns",
            ),
            dcc.Store(id="chosen"),  # a file as the browser read it
            dcc.Store(id="loaded"),  # the last sound file
            dcc.Store(id="before", data="random"),  # the kind of input to show while there is no file
        ],
        className="page",
    )


def _header() -> Any:
    return html.Header(
        [
            html.H1("uotpool explore"),
            html.P(
                "Pooling makes one vector of a set of N samples with D features each. Here the entries of X "
                "are weighed by a transport plan P, and α₀, α₁ and α₂ decide whether that is mean, max or "
                "attention pooling, or something between."
            ),
        ]
    )


def _weights() -> Any:
    presets = html.Div(
        [
            html.Button(name, id=f"preset-{name}", n_clicks=0, type="button")
            for name in ("mean", "max", "attention")
        ],
        className="presets",
    )
    return _card(
        "Weights",
        presets,
        html.P("These set the weights of Proposition 1, and the sample prior.", className="hint"),
        *(_log_slider(name, *words) for name, words in WEIGHTS.items()),
        name="weights",
    )


def _input() -> Any:
    kinds = {
        "random": "random",
        "rows": "one digit",
        "images": "digit images",
        "file": "a .npy file",
    }
    return _card(
        "Input X",
        _radio("kind", kinds, "random"),
        html.Div(
            [
                _number("seed", "seed", 0, 2**31 - 1, 0),
                _number("samples", "samples N", 1, MOST_SIDE, 10),
                _number("features", "features D", 1, MOST_SIDE, 6),
            ],
            id="random-controls",
            className="fields",
        ),
        html.Div(
            [_number("digit", "digit", 0, 9, 3), _number("which", "image", 0, 170, 0)],
            id="digit-controls",
            className="fields",
            hidden=True,
        ),
        html.Div(
            [
                dcc.Upload(
                    html.Div(["Drop a .npy file here, or ", html.U("choose one")]),
                    id="upload",
                    className="upload",
                    multiple=False,
                ),
                html.P(f"Accepted: {ACCEPTED}. It stays on this machine.", className="hint"),
            ],
            id="file-controls",
            hidden=True,
        ),
        html.Div(id="upload-message", role="status"),
        html.P(id="about", className="hint"),
        name="input",
    )


def _solver() -> Any:
    solvers = {"sinkhorn": "Sinkhorn", "badmm-e": "BADMM-E", "badmm-q": "BADMM-Q"}
    return _card(
        "Solver",
        _radio("solver", solvers, "sinkhorn"),
        html.P(
            "Sinkhorn and BADMM-E smooth by entropy; BADMM-Q by the sum of squares, so its plan has zeros.",
            className="hint",
        ),
        _radio("formulation", {"exact": "exact", "paper": "as published"}, "exact"),
        html.P(
            "exact solves the problem; as published follows the paper's Algorithms 1 and 2.", className="hint"
        ),
        html.Div(
            [
                _label("Modules K (solver steps)", "K-shown"),
                _slider("K", 0, MOST_MODULES, 1, 4, _modules()),
            ],
            id="K-row",
        ),
        dcc.Checklist(
            options=[{"label": "as many as the optimum needs (exact only)", "value": "yes"}],
            value=["yes"],
            id="optimum",
        ),
        html.Div(
            [
                _label("Step rho of Bregman ADMM", "rho-shown"),
                _slider("rho", LEAST, MOST, 0.1, START["rho"], MARKS),
                dcc.Checklist(
                    options=[{"label": "the suggested one", "value": "yes"}], value=["yes"], id="suggested"
                ),
            ],
            id="rho-row",
            hidden=True,
        ),
        name="solver",
    )


def _priors() -> Any:
    def choice(name: str, label: str) -> Any:
        options = {option["value"]: option["label"] for option in PRIORS}
        return html.Div([html.Div(label, className="label"), _radio(name, options, "uniform")])

    return _card(
        "Priors",
        choice("q0", "over samples, q₀"),
        choice("p0", "over features, p₀"),
        html.P(
            "Softmax of the norms gives more to samples (or features) of large norm. It stands for what a "
            "network would learn, and is the attention of the attention pooling shown here.",
            className="hint",
        ),
        name="priors",
    )


def _views() -> Any:
    views = {"plan": "plan P", "shares": "weights p(n|d)"}
    return html.Main(
        [
            html.Div(id="notes", role="status", className="notes"),
            html.Div([_tile(name, *words) for name, words in NUMBERS.items()], className="tiles"),
            html.Div(
                [
                    html.Section(
                        [html.Div(html.H2("Input"), className="heading"), _graph("input-chart")],
                        className="card",
                    ),
                    html.Section(
                        [
                            html.Div(
                                [html.H2("Transport plan"), _radio("view", views, "plan")], className="heading"
                            ),
                            _graph("plan-chart"),
                        ],
                        className="card",
                    ),
                ],
                className="pair order-plan",
            ),
            html.Section(
                [
                    html.H2("Pooled vector, beside mean, max and attention pooling of the same X"),
                    html.Div(_graph("pictures-chart", "pictures"), id="pictures-row", hidden=True),
                    _graph("pooled-chart"),
                ],
                className="card",
            ),
            html.Div(
                [
                    html.Section(
                        [html.H2("Mass of each sample, and q₀"), _graph("q-chart", "low")], className="card"
                    ),
                    html.Section(
                        [html.H2("Mass of each feature, and p₀"), _graph("p-chart", "low")], className="card"
                    ),
                ],
                className="pair",
            ),
        ]
    )


def _card(title: str, *children: Any, name: str) -> Any:
    return html.Section([html.H2(title), *children], className=f"card order-{name}")


def _tile(name: str, title: str, hint: str) -> Any:
    return html.Div(
        [
            html.Div(title, className="label"),
            html.Div("...", id=f"number-{name}", className="value"),
            html.Div(hint, id=f"hint-{name}", className="hint"),
        ],
        className="tile",
    )


def _graph(name: str, size: str = "") -> Any:
    graph = dcc.Graph(id=name, config=charts.CONFIG, responsive=True, style={"height": "100%"})
    return html.Div(graph, className=f"graph {size}".strip())


def _radio(name: str, options: dict[str, str], value: str) -> Any:
    choices = [{"label": label, "value": key} for key, label in options.items()]
    return dcc.RadioItems(options=choices, value=value, id=name, inline=True, className="radio")


def _label(text: str, shown: str) -> Any:
    return html.Div([html.Span(text), html.Output(id=shown, className="shown")], className="label")


def _log_slider(name: str, label: str, hint: str) -> Any:
    least = ZERO if name in MAY_BE_ZERO else LEAST
    marks = ({ZERO: "0"} if name in MAY_BE_ZERO else {}) | MARKS
    return html.Div(
        [
            _label(label, f"{name}-shown"),
            _slider(name, least, MOST, 0.1, START[name], marks),
            html.P(hint, className="hint"),
        ],
        className="slider-row",
    )


def _slider(name: str, least: float, most: float, step: float, value: float, marks: dict[Any, str]) -> Any:
    return dcc.Slider(
        least,
        most,
        step,
        id=name,
        value=value,
        marks={(int(k) if k == int(k) else k): v for k, v in marks.items()},
        updatemode="drag",
        included=False,
        allow_direct_input=False,
    )


def _modules() -> dict[int, str]:
    return {k: str(k) for k in (0, 8, 16, 32, 48, MOST_MODULES)}


def _number(name: str, label: str, least: int, most: int, value: int) -> Any:
    field = dcc.Input(id=name, type="number", min=least, max=most, step=1, value=value, debounce=False)
    return html.Label([html.Span(label), field], className="field")
