"""A small builder of Grafana dashboards: what four dashboards need, as the JSON that Grafana imports.

grafana-foundation-sdk builds the same from 4.8 MB of generated classes. It is a development dependency: a test reads each
dashboard with it and writes it again, and nothing may be lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# Of Grafana 11: it migrates older ones, and refuses none.
SCHEMA_VERSION = 41
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, object]


@dataclass(frozen=True)
class Query:
    """One expression; `legend` may name labels: `{{workload}}`. `table`: only the newest value, as rows."""

    expression: str
    legend: str = ""
    table: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is Grafana's name of a unit, `kind` its name of a panel."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    description: str = ""
    least: float | None = None
    most: float | None = None
    # Where the colour changes, lowest first; the first colour has no value.
    thresholds: tuple[tuple[str, float | None], ...] = ()
    # Columns of a table that say nothing.
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variable:
    """A choice of the values of a label, all of them at first."""

    name: str
    metric: str
    label: str

    @property
    def query(self) -> str:
        return f"label_values({self.metric}, {self.label})"


@dataclass(frozen=True)
class Dashboard:
    """A dashboard, with its panels from left to right and from top to bottom."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]

    @property
    def file(self) -> str:
        return f"{self.uid}.json"

    def to_dict(self) -> Json:
        """Return the JSON that Grafana imports."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["stackmark"],
            "timezone": "browser",
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "schemaVersion": SCHEMA_VERSION,
            "time": {"from": "now-24h", "to": "now"},
            "templating": {"list": [_data_source(), *map(_variable, self.variables)]},
            "panels": list(_placed(self.panels)),
        }


def _data_source() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(one: Variable) -> Json:
    return {
        "name": one.name,
        "label": one.name.capitalize(),
        "type": "query",
        "datasource": dict(SOURCE),
        "query": {"query": one.query, "refId": one.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _placed(panels: Sequence[Panel]) -> Sequence[Json]:
    placed: list[Json] = []
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > COLUMNS:
            x, y, height = 0, y + height, 0
        placed.append(_panel(number, panel, x, y))
        x, height = x + panel.width, max(height, panel.height)
    return placed


def _panel(number: int, panel: Panel, x: int, y: int) -> Json:
    defaults: Json = {"unit": panel.unit}
    if panel.least is not None:
        defaults["min"] = panel.least
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.thresholds:
        steps = [{"color": colour, "value": value} for colour, value in panel.thresholds]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    made: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": dict(SOURCE),
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [_target(chr(ord("A") + place), query) for place, query in enumerate(panel.queries)],
    }
    if panel.kind == "timeseries":
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        made["options"] = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "table":
        hide = dict.fromkeys(("Time", "__name__", "instance", "job", *panel.hidden), True)
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hide}}]
    return made


def _target(letter: str, query: Query) -> Json:
    made: Json = {
        "refId": letter,
        "datasource": dict(SOURCE),
        "expr": query.expression,
        "legendFormat": query.legend,
        "range": not query.table,
        "instant": query.table,
        "format": "table" if query.table else "time_series",
    }
    return made
