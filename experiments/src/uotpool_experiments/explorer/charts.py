"""The charts as plain dicts for plotly.js. Classes that check them would take longer than the solver."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from uotpool_experiments.explorer.compute import Result

Chart = dict[str, Any]

# The colours of Okabe and Ito, the same everywhere on the page.
COLOURS = {"pooled": "#0072B2", "mean": "#E69F00", "max": "#D55E00", "attention": "#009E73", "prior": "#222222"}
SYMBOLS = {"mean": "line-ew-open", "max": "triangle-up", "attention": "diamond-open"}
BLUES = [[0, "#f7fbff"], [0.25, "#c6dbef"], [0.5, "#6baed6"], [0.75, "#2171b5"], [1, "#08306b"]]
GREYS = [[0, "#ffffff"], [1, "#222222"]]
SIGNED = [[0, "#b35806"], [0.5, "#ffffff"], [1, "#542788"]]
FONT = {"family": "system-ui, sans-serif", "size": 12, "color": "#333333"}
VIEWS = ("plan", "shares")
CONFIG = {
    "displayModeBar": False,
    "displaylogo": False,
    "showSendToCloud": False,
    "showEditInChartStudio": False,
    "plotlyServerURL": "",
    "responsive": True,
    "scrollZoom": False,
    "doubleClick": False,
}


def input_chart(X: Tensor, digit: bool) -> Chart:
    """Show X as it is, in grey if nothing is negative."""
    low, high = float(X.min()), float(X.max())
    if low < 0:
        high = max(-low, high)
        low = -high
    scale = SIGNED if low < 0 else GREYS
    names = ("column (feature d)", "row (sample n)") if digit else ("feature d", "sample n")
    return _matrix(X, "X", scale, min(low, 0.0), high if high > 0 else 1.0, names)


def plan_chart(result: Result, view: str, digit: bool) -> Chart:
    """Show P, or p(n|d), which is P divided by its column sums."""
    values, name = (result.shares, "p(n|d)") if view == "shares" else (result.P, "P")
    count = len(values) if view == "shares" else values.numel()
    finite = values[values.isfinite()]
    # A uniform plan is half way up the scale, so that it looks flat and not full.
    top = max(float(finite.max()) if len(finite) else 0.0, 2 / count)
    names = ("column (feature d)", "row (sample n)") if digit else ("feature d", "sample n")
    chart = _matrix(values, name, BLUES, 0.0, top, names)
    if not len(finite):
        chart["layout"]["annotations"] = [
            {
                "text": "no plan to show",
                "showarrow": False,
                "xref": "paper",
                "yref": "paper",
                "x": 0.5,
                "y": 0.5,
            }
        ]
    return chart


def pooled_chart(result: Result) -> Chart:
    """Show the pooled vector beside mean, max and attention pooling of the same input."""
    d = _numbers(len(result.pooled))
    bars = {
        "type": "bar",
        "name": "this plan",
        "x": d,
        "y": _list(result.pooled),
        "marker": {"color": COLOURS["pooled"], "opacity": 0.55},
        "hovertemplate": "feature %{x}: %{y:.4g}<extra>this plan</extra>",
    }
    size = 11 if len(d) <= 20 else 6
    points = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": d,
            "y": _list(other),
            "marker": {
                "symbol": SYMBOLS[name],
                "color": COLOURS[name],
                "size": size + 3 if name == "mean" else size,
                "line": {"width": 2.5, "color": COLOURS[name]} if "open" in SYMBOLS[name] else {"width": 0},
            },
            "hovertemplate": f"feature %{{x}}: %{{y:.4g}}<extra>{name}</extra>",
        }
        for name, other in result.others.items()
    ]
    layout = _layout("feature d", "pooled value", legend=True)
    return {"data": [bars, *points], "layout": layout}


def marginal_chart(marginal: Tensor, prior: Tensor, axis: str) -> Chart:
    """Show the mass that the plan gives each feature or sample, and the mass that the prior asks for."""
    i = _numbers(len(prior))
    bars = {
        "type": "bar",
        "name": "plan",
        "x": i,
        "y": _list(marginal),
        "marker": {"color": COLOURS["pooled"], "opacity": 0.55},
        "hovertemplate": f"{axis} %{{x}}: %{{y:.4g}}<extra>plan</extra>",
    }
    ticks = {
        "type": "scatter",
        "mode": "markers",
        "name": "prior",
        "x": i,
        "y": _list(prior),
        "marker": {
            "symbol": "line-ew-open",
            "color": COLOURS["prior"],
            "size": 12 if len(i) <= 20 else 6,
            "line": {"width": 2, "color": COLOURS["prior"]},
        },
        "hovertemplate": f"{axis} %{{x}}: %{{y:.4g}}<extra>prior</extra>",
    }
    layout = _layout(axis, "mass", legend=True)
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": [bars, ticks], "layout": layout}


def pictures_chart(result: Result) -> Chart:
    """Show pooled vectors of 64 pixels as images: this plan, mean, max, attention."""
    vectors = {"this plan": result.pooled, **result.others}
    layout = _layout("", "", legend=False) | {"annotations": [], "margin": {"l": 4, "r": 4, "t": 26, "b": 4}}
    del layout["xaxis"], layout["yaxis"]
    data = []
    for i, (name, vector) in enumerate(vectors.items()):
        number = "" if i == 0 else str(i + 1)
        left = i / 4 + 0.01
        data.append(
            {
                "type": "heatmap",
                "z": [_list(row) for row in vector.reshape(8, 8)],
                "colorscale": GREYS,
                "zmin": 0,
                "zmax": 1,
                "showscale": False,
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
                "hovertemplate": f"%{{z:.3g}}<extra>{name}</extra>",
            }
        )
        side = {"visible": False, "fixedrange": True}
        layout[f"xaxis{number}"] = side | {"domain": [left, left + 0.23], "anchor": f"y{number}"}
        square = {
            "autorange": "reversed",
            "scaleanchor": f"x{number}",
            "constrain": "domain",
            "anchor": f"x{number}",
        }
        layout[f"yaxis{number}"] = side | square
        layout["annotations"].append(
            {
                "text": name,
                "showarrow": False,
                "xref": "paper",
                "yref": "paper",
                "x": left + 0.115,
                "y": 1,
                "xanchor": "center",
                "yanchor": "bottom",
            }
        )
    return {"data": data, "layout": layout}


def _matrix(
    values: Tensor, name: str, scale: list[list[Any]], low: float, high: float, axes: tuple[str, str]
) -> Chart:
    heat = {
        "type": "heatmap",
        "x": _numbers(values.shape[1]),
        "y": _numbers(values.shape[0]),
        "z": [_list(row) for row in values],
        "colorscale": scale,
        "zmin": low,
        "zmax": high,
        "xgap": 1 if values.numel() <= 1024 else 0,
        "ygap": 1 if values.numel() <= 1024 else 0,
        "colorbar": {"thickness": 12, "outlinewidth": 0, "len": 1, "title": {"text": name}, "tickformat": "~g"},
        "hovertemplate": f"{axes[1]} %{{y}}, {axes[0]} %{{x}}<br>{name} = %{{z:.4g}}<extra></extra>",
    }
    layout = _layout(*axes, legend=False)
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False, "zeroline": False}
    layout["xaxis"] |= {"showgrid": False, "zeroline": False}
    for axis, count in (("xaxis", values.shape[1]), ("yaxis", values.shape[0])):
        layout[axis]["dtick"] = _step(count)
        layout[axis]["tick0"] = 1 if _step(count) == 1 else 0
    layout["plot_bgcolor"] = "#e6e6e6"
    return {"data": [heat], "layout": layout}


def _step(count: int) -> int:
    return 1 if count <= 12 else 5 if count <= 40 else 10 if count <= 100 else 50


def _layout(x: str, y: str, *, legend: bool) -> Chart:
    axis = {"fixedrange": True, "automargin": True, "gridcolor": "#e6e6e6", "zerolinecolor": "#bbbbbb"}
    return {
        "font": FONT,
        "margin": {"l": 48, "r": 8, "t": 30 if legend else 8, "b": 40},
        "xaxis": axis | {"title": {"text": x, "standoff": 8}},
        "yaxis": axis | {"title": {"text": y, "standoff": 8}},
        "dragmode": False,
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 11}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "bargap": 0.25,
        "hoverlabel": {"font": {"size": 12}},
        "uirevision": "kept",
    }


def _numbers(count: int) -> list[int]:
    return list(range(1, count + 1))


def _list(values: Tensor) -> list[float | None]:
    """Return the values with None for NaN and infinity, which JSON does not have. plotly.js leaves
    a gap there.
    """
    return [v if math.isfinite(v) else None for v in values.tolist()]
