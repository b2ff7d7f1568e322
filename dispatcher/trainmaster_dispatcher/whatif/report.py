"""The report of one or several simulations as a self-contained page: no script, no font, no picture from elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from trainmaster.protocol.durations import format_duration
from trainmaster_dispatcher.whatif.values import Figures, Waits, forecast_rows

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _RIGHT, _TOP = 640, 300, 72, 44, 24, 16
_ROW = 26
_COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2")
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e7eb; --soft: #9ca3af; --line: #374151; --page: #111827; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
p.note { color: var(--soft); } svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .soft { fill: var(--soft); } svg .axis { stroke: var(--line); }
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One of the simulations that are compared; ``name`` states how it differs."""

    name: str
    figures: Figures


def page(title: str, workload: str, cases: Sequence[Case], currency: str) -> str:
    """Return the whole page. ``cases``: at least one."""
    parts = [f"<h1>{escape(title)}</h1>", f"<p class=note>{escape(_what(workload, cases[0].figures))}</p>"]
    if len(cases) > 1:
        parts += ["<h2>Side by side</h2>", _compared(cases, currency), *_queues_compared(cases)]
        parts += [_trade(cases, currency), _waits_bars(cases)]
    for case in cases:
        parts += _one(case, currency, alone=len(cases) == 1)
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n'
    )


def _what(workload: str, figures: Figures) -> str:
    return (
        f"{figures.jobs:,} jobs of {workload}, through the scheduler of Trainmaster on simulated clusters. Waits are from"
        " submission to the first start, of jobs that started; money is an estimate from the price books."
    )


def _time(seconds: float) -> str:
    return format_duration(round(seconds))


def _money(amount: float, currency: str) -> str:
    return f"{amount:,.2f} {currency}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _compared(cases: Sequence[Case], currency: str) -> str:
    has_bursts = any(case.figures.bursts for case in cases)
    heads = ["", "mean wait", "95 % wait", "slowdown", "never started", "preempted"]
    heads += [*(["sent to public clusters"] if has_bursts else []), "fairness", f"cost {currency}"]
    rows = [
        [
            case.name,
            _time(case.figures.waits.mean),
            _time(case.figures.waits.p95),
            f"{case.figures.waits.slowdown:,.2f}",
            f"{case.figures.jobs - case.figures.waits.started:,}",
            f"{case.figures.preemptions:,}",
            *([f"{sum(case.figures.bursts.values()):,}"] if has_bursts else []),
            f"{case.figures.fairness:.3f}",
            f"{case.figures.cost:,.2f}",
        ]
        for case in cases
    ]
    return _table(heads, rows)


def _queues_compared(cases: Sequence[Case]) -> list[str]:
    """Return a table of each queue in each case; empty where there is only one queue."""
    paths = sorted({path for case in cases for path in case.figures.queues})
    if len(paths) < 2:
        return []
    heads = ["queue", "case", "median wait", "95 % wait", "started", "never started", "preempted", "share"]
    rows = []
    for path in paths:
        for case in cases:
            one, waits = case.figures.queues.get(path), case.figures.by_queue.get(path)
            if one is not None and waits is not None:
                counts = [f"{number:,}" for number in (one.started, one.unplaced, one.preempted)]
                rows.append([path, case.name, _time(waits.p50), _time(waits.p95), *counts, f"{one.share:.1%}"])
    return [_table(heads, rows)]


def _one(case: Case, currency: str, *, alone: bool) -> list[str]:
    figures = case.figures
    ends = ", ".join(f"{count:,} {state}" for state, count in figures.ends.items())
    heads = ["wait of", "jobs", "mean", "median", "95 %", "longest", "slowdown"]
    rows = [_waits_row("all", figures.waits)]
    rows += [_waits_row(name, one) for name, one in figures.by_queue.items() if len(figures.by_queue) > 1]
    rows += [_waits_row(f"class {name}", one) for name, one in figures.by_class.items() if len(figures.by_class) > 1]
    resources = sorted({name for cluster in figures.clusters for name in cluster.used})
    clusters = [
        [
            f"{one.name} ({one.kind})",
            f"{one.jobs:,}",
            *(f"{one.used[name]:.1%}" if name in one.used else "-" for name in resources),
            _money(one.cost, currency),
        ]
        for one in figures.clusters
    ]
    bars = [
        (f"{one.name}, {name}", one.used[name], f"{one.used[name]:.1%}")
        for one in figures.clusters
        for name in resources
        if name in one.used
    ]
    title = "Waits" if alone else case.name
    sent = "".join(f"; {count:,} runs to public clusters by {name}" for name, count in sorted(figures.bursts.items()))
    return [
        f"<h2>{escape(title)}</h2>",
        f"<p>{escape(ends)}; over after {_time(figures.seconds)}; {figures.preemptions:,} preempted; fairness between queues"
        f" {figures.fairness:.3f}; cost {escape(_money(figures.cost, currency))}{escape(sent)}.</p>",
        _table(heads, rows),
        *_forecasts(figures),
        f"<h{2 if alone else 3}>Clusters</h{2 if alone else 3}>",
        _table(["cluster", "jobs", *(f"{name} used" for name in resources), "cost"], clusters),
        _bars(bars, 1.0),
    ]


def _forecasts(figures: Figures) -> list[str]:
    """Return a table of how far forecasts of waits held; empty if there was none."""
    rows = forecast_rows(figures)
    return [_table(["forecast of", "jobs", "started by the time of half", "of nine tenths"], rows)] if rows else []


def _waits_row(name: str, waits: Waits) -> list[str]:
    times = [_time(value) for value in (waits.mean, waits.p50, waits.p95, waits.most)]
    return [name, f"{waits.started:,}", *times, f"{waits.slowdown:,.2f}"]


# Charts


def _waits_bars(cases: Sequence[Case]) -> str:
    most = max((case.figures.waits.p95 for case in cases), default=0.0) or 1.0
    bars = [
        (f"{case.name}, {name}", value, _time(value))
        for case in cases
        for name, value in (("mean", case.figures.waits.mean), ("95 %", case.figures.waits.p95))
    ]
    return "<h2>Waits</h2>" + _bars(bars, most)


def _bars(bars: Sequence[tuple[str, float, str]], most: float) -> str:
    """Return horizontal bars: label, value, text; a bar of the value ``most`` has the full width."""
    if not bars:
        return ""
    height = _ROW * len(bars) + 8
    label = 220
    full_width = _WIDTH - label - 90
    drawn = []
    for place, (name, value, text) in enumerate(bars):
        top = 4 + place * _ROW
        width = max(0.0, min(1.0, value / most)) * full_width
        drawn.append(
            f'<text x="{label - 8}" y="{top + 16}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{label}" y="{top + 4}" width="{width:.1f}" height="{_ROW - 10}" rx="2" fill="{_COLOURS[0]}"/>'
            f'<text x="{label + width + 6:.1f}" y="{top + 16}" class="soft">{escape(text)}</text>'
        )
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">{"".join(drawn)}</svg>'


def _trade(cases: Sequence[Case], currency: str) -> str:
    """Return a chart of cost against mean wait, a point for each case, joined in their order; empty if nothing costs anything."""
    costs = [case.figures.cost for case in cases]
    waits = [case.figures.waits.mean for case in cases]
    if not any(costs):
        return ""
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    most_cost, most_wait = max(costs) or 1.0, max(waits) or 1.0
    points = [
        (_LEFT + cost / most_cost * wide, _TOP + high - wait / most_wait * high)
        for cost, wait in zip(costs, waits, strict=True)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_COLOURS[1]}"/>'
        f'<text x="{x + 7:.1f}" y="{y - 7:.1f}">{escape(case.name)}</text>'
        for (x, y), case in zip(points, cases, strict=True)
    )
    base = _HEIGHT - _BOTTOM
    axes = (
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{base}"/>'
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH - _RIGHT}" y2="{base}"/>'
        f'<text x="{_LEFT - 8}" y="{_TOP + 10}" text-anchor="end" class="soft">{_time(most_wait)}</text>'
        f'<text x="{_LEFT - 8}" y="{base}" text-anchor="end" class="soft">0</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{base + 18}" text-anchor="end" class="soft">{escape(_money(most_cost, currency))}</text>'
        f'<text x="{_LEFT}" y="{base + 18}" class="soft">0</text>'
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" text-anchor="middle" class="soft">cost</text>'
        f'<text x="{_LEFT + 8}" y="{_TOP + 10}" class="soft">mean wait</text>'
    )
    path = f'<polyline points="{line}" fill="none" stroke="{_COLOURS[1]}" stroke-width="1.5" opacity="0.5"/>'
    return (
        "<h2>Cost against wait</h2>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">{axes}{path}{dots}</svg>'
    )
