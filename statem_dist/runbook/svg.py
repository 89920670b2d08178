"""A runbook as a picture, laid out here: SVG, without any other program.

Nodes stand in layers, one below the other: a node is one layer below the lowest of those that lead to it. For that
the edges that close a cycle, as a repair loop does, are left out; a search from the initial node finds them.

Three kinds of edges come of it. One to the next layer is a curve between the two. One that skips layers runs down a
lane to the right of everything, and one that goes back runs up a lane to the left, so that no edge crosses a node.
Lanes are shared by edges that do not meet. A self-loop is a small arc at its node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from msgspec import Struct

from statem_dist.protocol.graph import Edge, Node, Runbook
from statem_dist.runbook.drawing import (
    FILLS,
    INK,
    NO_MARKS,
    Marks,
    edge_label,
    ends_of,
    node_summary,
    one_line,
)

MARGIN = 24
TITLE_HEIGHT = 32
NODE_HEIGHT = 40
NODE_GAP = 56
LAYER_GAP = 64
LANE_GAP = 26
COLUMN = 7.8
"""Width of a letter of a label, in pixels; letters of East Asian scripts have two columns."""
COLUMNS_MAX = 40
"""Columns of a name that are shown; all of it is in the node's title."""
SWEEPS = 4
"""How often the order within layers is improved, down and up."""
LINE = "#64748b"

Point = tuple[float, float]


class Box(Struct, eq=False):
    """A node in the picture. ``place`` is its position within its layer, from the middle of the layer."""

    node: Node
    layer: int
    width: float
    place: float = 0
    x: float = 0
    y: float = 0


class Line(Struct):
    """An edge in the picture: its ends, its path, and the middle of its label, which stands upright along a lane.

    ``lane`` counts lanes from the nodes outwards; ``side`` says on which side they are, and is empty for an edge that
    needs none.
    """

    edge: Edge
    source: Box
    target: Box
    side: str = ""
    lane: int = 0
    path: str = ""
    label: Point = (0, 0)


def svg(runbook: Runbook, marks: Marks = NO_MARKS) -> str:
    """Return the picture of a runbook as an SVG document. Ends have a double outline."""
    return _Picture(runbook, marks).draw()


def layers_of(runbook: Runbook) -> dict[str, int]:
    """Return the layer of each node, from 0: the length of the longest way to it that closes no cycle."""
    exits: dict[str, list[str]] = defaultdict(list)
    for edge in runbook.edges:
        exits[edge.source].append(edge.target)
    done: dict[str, bool] = {}
    finished: list[str] = []
    # Depth first without recursion, because a runbook may be a chain of thousands of nodes.
    for root in (runbook.initial, *(node.name for node in runbook.nodes)):
        stack = [] if root in done else [(root, iter(exits[root]))]
        done.setdefault(root, False)
        while stack:
            name, targets = stack[-1]
            target = next(targets, None)
            if target is None:
                done[name] = True
                finished.append(name)
                stack.pop()
            elif target not in done:
                done[target] = False
                stack.append((target, iter(exits[target])))
    # An edge to a node that was finished later closes a cycle; in the reverse of this order all others go forward.
    rank = {name: number for number, name in enumerate(reversed(finished))}
    layers = dict.fromkeys(rank, 0)
    for name in rank:
        for target in exits[name]:
            if rank[target] > rank[name]:
                layers[target] = max(layers[target], layers[name] + 1)
    return layers


class _Picture:
    """One drawing under way."""

    def __init__(self, runbook: Runbook, marks: Marks) -> None:
        self._runbook = runbook
        self._marks = marks
        self._ends = ends_of(runbook)
        layers = layers_of(runbook)
        self._boxes = {
            node.name: Box(node, layers[node.name], max(72.0, COLUMN * _columns(_short(node.name)) + 28))
            for node in runbook.nodes
        }
        self._rows: list[list[Box]] = [[] for _ in range(max(layers.values()) + 1)]
        for box in self._boxes.values():
            self._rows[box.layer].append(box)
        self._lines = [self._line(edge) for edge in runbook.edges]
        self._lanes = {side: self._share_lanes(side) for side in ("left", "right")}

    def draw(self) -> str:
        self._order_rows()
        self._place_boxes()
        self._route_lines()
        height = self._rows[-1][0].y + NODE_HEIGHT + LAYER_GAP
        title = escape(one_line(self._runbook.name))
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{self._width:.0f}" height="{height:.0f}"'
            f' viewBox="0 0 {self._width:.0f} {height:.0f}">',
            f"<title>{title}</title>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            f' orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{self._width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
            f'<g font-family="system-ui, sans-serif" font-size="13" fill="{INK}">',
            f'<text x="{MARGIN}" y="{MARGIN + 4}" font-size="15" font-weight="bold">{title}</text>',
            f'<g fill="none" stroke="{LINE}" stroke-width="1.5">',
            *(f'<path d="{path}" marker-end="url(#arrow)"/>' for path in self._paths()),
            "</g>",
            *(self._drawn(box) for box in self._boxes.values()),
            # A halo around the letters hides less of the edges behind them than a ground would.
            '<g font-size="11" text-anchor="middle" paint-order="stroke" stroke="#ffffff" stroke-width="4"'
            ' stroke-linejoin="round">',
            *(_drawn_label(line) for line in self._lines),
            "</g>",
            "</g>",
            "</svg>",
        ]
        return "\n".join(part for part in parts if part)

    # Where everything stands

    def _line(self, edge: Edge) -> Line:
        source, target = self._boxes[edge.source], self._boxes[edge.target]
        span = target.layer - source.layer
        needs_lane = span > 1 or (span < 1 and source is not target)
        return Line(edge, source, target, side=("right" if span > 1 else "left") if needs_lane else "")

    def _share_lanes(self, side: str) -> int:
        """Give each edge on a side the innermost lane in which it meets no other; return how many there are."""
        lanes: list[list[range]] = []
        beside = [(_layers_along(line), line) for line in self._lines if line.side == side]
        for along, line in sorted(beside, key=lambda each: len(each[0])):
            free = (number for number, lane in enumerate(lanes) if not any(_meet(along, other) for other in lane))
            line.lane = next(free, len(lanes))
            if line.lane == len(lanes):
                lanes.append([])
            lanes[line.lane].append(along)
        return len(lanes)

    def _order_rows(self) -> None:
        """Sort each layer by where its neighbours stand in the layer before, going down and up in turn."""
        above: dict[str, list[Box]] = defaultdict(list)
        below: dict[str, list[Box]] = defaultdict(list)
        for line in self._lines:
            if line.target.layer == line.source.layer + 1:
                above[line.edge.target].append(line.source)
                below[line.edge.source].append(line.target)
        _number(self._rows)
        for sweep in range(SWEEPS):
            neighbours = below if sweep % 2 else above
            for row in self._rows[::-1] if sweep % 2 else self._rows:
                row.sort(key=lambda box: _mean([each.place for each in neighbours[box.node.name]], box.place))
                _number([row])

    def _place_boxes(self) -> None:
        widths = [sum(box.width for box in row) + NODE_GAP * (len(row) - 1) for row in self._rows]
        self._left = MARGIN + LANE_GAP * self._lanes["left"]
        self._right = self._left + max(widths)
        title = 2 * MARGIN + 1.2 * COLUMN * _columns(one_line(self._runbook.name))
        self._width = max(self._right + LANE_GAP * (self._lanes["right"] + 1) + MARGIN, title)
        for row, width in zip(self._rows, widths, strict=True):
            x = (self._left + self._right - width) / 2
            for box in row:
                box.x, box.y = x, MARGIN + LAYER_GAP + box.layer * (NODE_HEIGHT + LAYER_GAP)
                x += box.width + NODE_GAP

    # Where the edges run

    def _route_lines(self) -> None:
        ports = self._ports()
        for number, line in enumerate(self._lines):
            start, end = ports[number, "source"], ports[number, "target"]
            if line.side:
                self._route_beside(line, start, end)
            elif line.source is line.target:
                line.path = f"M{_xy(start)}c40 -16 40 {end[1] - start[1] + 16:.1f} 0 {end[1] - start[1]:.1f}"
                line.label = start[0] + 34, (start[1] + end[1]) / 2
            else:
                bend = LAYER_GAP / 2
                line.path = f"M{_xy(start)}C{_xy(start, bend)} {_xy(end, -bend)} {_xy(end)}"
                line.label = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2

    def _route_beside(self, line: Line, start: Point, end: Point) -> None:
        """Lead an edge out to its lane, along it, and in again; past the neighbours of a node, between the layers."""
        away = 16 + LANE_GAP * line.lane
        x = self._left - away if line.side == "left" else self._right + away
        between = 10 + (2 * line.lane + (line.side == "left")) * 6 % (LAYER_GAP - 20)
        corners = [start]
        leave, arrive = start[1], end[1]
        if not self._is_outermost(line.source, line.side):
            leave += between
            corners.append((start[0], leave))
        if not self._is_outermost(line.target, line.side):
            arrive -= between
        corners += [(x, leave), (x, arrive)]
        if arrive != end[1]:
            corners.append((end[0], arrive))
        line.path = _rounded([*corners, end])
        line.label = x, (leave + arrive) / 2

    def _is_outermost(self, box: Box, side: str) -> bool:
        return self._rows[box.layer][0 if side == "left" else -1] is box

    def _ports(self) -> dict[tuple[int, str], Point]:
        """Return where each edge leaves and enters its nodes, spread along the sides of each without crossings."""
        at: dict[tuple[str, str], list[tuple[tuple[float, float], int, str]]] = defaultdict(list)
        for number, line in enumerate(self._lines):
            outside = {"left": -1e9, "right": 1e9}.get(line.side, 0.0)
            for end, box, other in (("source", line.source, line.target), ("target", line.target, line.source)):
                if box is other:
                    face, order = "right", (0.5, 0.0)
                elif line.side and self._is_outermost(box, line.side):
                    face, order = line.side, (float(other.layer > box.layer), -float(other.layer))
                else:
                    face, order = "bottom" if end == "source" else "top", (outside, other.x + other.width / 2)
                at[box.node.name, face].append((order, number, end))
        ports: dict[tuple[int, str], Point] = {}
        for (name, face), ends in at.items():
            box = self._boxes[name]
            for position, (_, number, end) in enumerate(sorted(ends), start=1):
                along = position / (len(ends) + 1)
                ports[number, end] = {
                    "left": (box.x, box.y + NODE_HEIGHT * along),
                    "right": (box.x + box.width, box.y + NODE_HEIGHT * along),
                    "top": (box.x + box.width * along, box.y),
                    "bottom": (box.x + box.width * along, box.y + NODE_HEIGHT),
                }[face]
        return ports

    # What is drawn

    def _paths(self) -> Iterator[str]:
        first = self._boxes[self._runbook.initial]
        yield f"M{first.x + 14:.1f} {first.y - 26}V{first.y}"
        yield from (line.path for line in self._lines)

    def _drawn(self, box: Box) -> str:
        name = box.node.name
        mark = self._marks.of(name)
        about = node_summary(box.node, self._runbook, self._marks, end=name in self._ends)
        outline = f'fill="{FILLS[mark]}" stroke="{INK}" stroke-width="{3 if mark == "current" else 1}"'
        parts = [f"<title>{escape(chr(10).join(about))}</title>", _rectangle(box, 0, outline)]
        if name in self._ends:
            parts.append(_rectangle(box, 4, f'fill="none" stroke="{INK}"'))
        if name == self._runbook.initial:
            parts.append(f'<circle cx="{box.x + 14:.1f}" cy="{box.y - 28}" r="4"/>')
        x, y = box.x + box.width / 2, box.y + NODE_HEIGHT / 2 + 4.5
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(_short(name))}</text>')
        return f"<g>{''.join(parts)}</g>"


def _layers_along(line: Line) -> range:
    low, high = sorted((line.source.layer, line.target.layer))
    return range(low, high + 1)


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _number(rows: Sequence[list[Box]]) -> None:
    for row in rows:
        for position, box in enumerate(row):
            box.place = position - (len(row) - 1) / 2


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _xy(point: Point, lower: float = 0) -> str:
    return f"{point[0]:.1f} {point[1] + lower:.1f}"


def _rounded(points: Sequence[Point], radius: float = 8) -> str:
    """Return a path along points that lie across from or above each other, with rounded corners."""
    path = f"M{_xy(points[0])}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        path += f"L{_xy(_towards(corner, before, radius))}Q{_xy(corner)} {_xy(_towards(corner, after, radius))}"
    return f"{path}L{_xy(points[-1])}"


def _towards(start: Point, end: Point, distance: float) -> Point:
    """Return the point at a distance from one point on the way to another, halfway at the most."""
    length = abs(end[0] - start[0]) + abs(end[1] - start[1])
    share = min(0.5, distance / length) if length else 0.0
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _rectangle(box: Box, inset: float, look: str) -> str:
    width, height = box.width - 2 * inset, NODE_HEIGHT - 2 * inset
    return f'<rect x="{box.x + inset:.1f}" y="{box.y + inset}" width="{width:.1f}" height="{height}" rx="8" {look}/>'


def _drawn_label(line: Line) -> str:
    text = edge_label(line.edge)
    if not text:
        return ""
    x, y = line.label
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if line.side else ""
    return f'<text x="{x:.1f}" y="{y + 4:.1f}"{turned}>{text}</text>'


def _columns(text: str) -> int:
    return sum(2 if east_asian_width(each) in "WF" else 1 for each in text)


def _short(name: str) -> str:
    """Return a name as it is shown: on one line, and cut where it is too long for a picture."""
    line = one_line(name)
    if _columns(line) <= COLUMNS_MAX:
        return line
    while _columns(line) >= COLUMNS_MAX:
        line = line[:-1]
    return f"{line}…"
