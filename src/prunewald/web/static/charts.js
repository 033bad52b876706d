// Charts: points with intervals and lines, bars, histograms. Each is an SVG whose colours stand in it, so that it can be saved.

function canvasOf(width, height, margin) {
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT, "font-size": 12 });
  const area = { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
  return { svg, area, width, height };
}

const words = (text, x, y, more = {}) => draw("text", { x, y, fill: style("muted"), ...more }, text);

function axes({ svg, area }, x, y, { xLabel, yLabel, zero = false, xGrid = false }) {
  const line = (x1, y1, x2, y2, color) => draw("line", { x1, y1, x2, y2, stroke: color, "stroke-width": 1 });
  for (const tick of y.ticks) {
    const at = y.place(tick);
    svg.append(line(area.left, at, area.right, at, zero && tick === 0 ? style("muted") : style("grid")));
    svg.append(words(y.label(tick), area.left - 8, at + 4, { "text-anchor": "end" }));
  }
  const room = x.ticks.length * 44 > area.right - area.left ? Math.ceil((x.ticks.length * 44) / (area.right - area.left)) : 1;
  x.ticks.forEach((tick, place) => {
    if (place % room) return;
    const at = x.place(tick);
    if (xGrid) svg.append(line(at, area.top, at, area.bottom, style("grid")));
    svg.append(line(at, area.bottom, at, area.bottom + 4, style("muted")));
    svg.append(words(x.label(tick), at, area.bottom + 18, { "text-anchor": "middle" }));
  });
  svg.append(line(area.left, area.bottom, area.right, area.bottom, style("muted")));
  svg.append(words(xLabel, (area.left + area.right) / 2, area.bottom + 38, { "text-anchor": "middle" }));
  svg.append(words(yLabel, area.left - 40, area.top - 12));
}

const MARKS = {
  o: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  s: (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  "^": (r) => `M0 ${-1.2 * r}L${1.1 * r} ${r}L${-1.1 * r} ${r}z`,
  v: (r) => `M0 ${1.2 * r}L${1.1 * r} ${-r}L${-1.1 * r} ${-r}z`,
  D: (r) => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0z`,
  x: (r) => `M${-r} ${-r}L${r} ${r}M${r} ${-r}L${-r} ${r}`,
  _: (r) => `M${-1.4 * r} 0H${1.4 * r}`,
  P: (r) => `M${-1.3 * r} 0H${1.3 * r}M0 ${-1.3 * r}V${1.3 * r}`,
};
const STROKES = new Set(["x", "_", "P"]);
const DASHES = { lamp: "7 4", erk: "2 4", global: "10 4 2 4", "lamp-score": "1 3" };

function mark(kind, x, y, color, fillStyle, r = 4) {
  const known = MARKS[kind] ? kind : "D";
  const open = STROKES.has(known) || fillStyle !== "full";
  const inside = fillStyle === "full" && !STROKES.has(known) ? color : style("ground");
  const how = { fill: STROKES.has(known) ? "none" : inside, stroke: color, "stroke-width": open ? 1.8 : 1 };
  return draw("path", { d: MARKS[known](r), transform: `translate(${x} ${y})`, ...how });
}

// `series`: label, color, dash, mark, fill, points of x, y, low and high. Marks of one x stand beside each other.
function lineChart(width, { series, xs, xLabel, xText, yLabel, scale, zero, reference = null, joined = true }) {
  const board = canvasOf(width, Math.round(Math.min(380, Math.max(260, width * 0.62))), { left: 52, right: 12, top: 28, bottom: 48 });
  const { svg, area } = board;
  const every = series.flatMap((one) => one.points.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]));
  if (reference) every.push(reference.y);
  const span = Math.max(...every) - Math.min(...every) || 1;
  const [low, high] = [Math.min(...every) - 0.04 * span, Math.max(...every) + 0.04 * span];
  const y = scale(low, high, area.bottom, area.top);
  const x = categories(xs, area.left, area.right, xText);
  axes(board, x, y, { xLabel, yLabel, zero });
  if (reference) {
    const at = y.place(reference.y);
    svg.append(draw("line", { x1: area.left, x2: area.right, y1: at, y2: at, stroke: style("muted"), "stroke-dasharray": "4 3" }));
    svg.append(words(reference.label, area.left + 6, at - 5, { "font-size": 11 }));
  }
  series.forEach((one, place) => {
    const shift = Math.min(9, (0.7 * x.step) / series.length) * (place - (series.length - 1) / 2);
    const spots = one.points.map((point) => ({ ...point, at: x.place(point.x) + shift, up: y.place(point.y) }));
    const path = spots.map((spot, index) => `${index ? "L" : "M"}${spot.at.toFixed(1)} ${spot.up.toFixed(1)}`).join("");
    const thin = { stroke: one.color, fill: "none", "stroke-width": 1.4, "stroke-opacity": 0.75 };
    if (joined && spots.length > 1) svg.append(draw("path", { d: path, "stroke-dasharray": one.dash ?? "none", ...thin }));
    for (const spot of spots) {
      if (spot.low !== null && spot.low !== undefined && spot.low !== spot.high) {
        const [top, bottom] = [y.place(spot.high), y.place(spot.low)];
        svg.append(draw("path", { d: `M${spot.at} ${top}V${bottom}m-3 0h6M${spot.at - 3} ${top}h6`, stroke: one.color, "stroke-width": 1.2 }));
      }
      svg.append(mark(one.mark, spot.at, spot.up, one.color, one.fill));
    }
  });
  return svg;
}

// Plain lines over numbers: a history, or how a sparsity is shared out.
function curveChart(width, { curves, x: [xLow, xHigh], y: [yLow, yHigh], xLabel, yLabel, percent = [true, true], steps = false }) {
  const board = canvasOf(width, Math.round(Math.min(360, Math.max(250, width * 0.6))), { left: 52, right: 24, top: 28, bottom: 48 });
  const { svg, area } = board;
  const label = (scale, shown) => (shown ? { ...scale, label: (value) => `${Math.round(100 * value)} %` } : { ...scale, label: (v) => show.short(v) });
  const x = label(linear(xLow, xHigh, area.left, area.right), percent[0]);
  const y = label(linear(yLow, yHigh, area.bottom, area.top), percent[1]);
  axes(board, x, y, { xLabel, yLabel });
  for (const curve of curves) {
    let d = "";
    curve.points.forEach(([a, b], place) => {
      const [left, up] = [x.place(a).toFixed(1), y.place(b).toFixed(1)];
      d += place === 0 ? `M${left} ${up}` : steps && !curve.straight ? `H${left}V${up}` : `L${left} ${up}`;
    });
    svg.append(draw("path", { d, fill: "none", stroke: curve.color, "stroke-width": curve.thick ?? 1.6, "stroke-dasharray": curve.dash ?? "none" }));
    for (const [a, b] of curve.dots ?? []) svg.append(mark("o", x.place(a), y.place(b), curve.color, "full", 3.5));
  }
  return svg;
}

// Bars side by side; `bars` have an `x` label and `parts` of value and color, stacked.
function histogram(width, { bars, xLabel, yLabel, height = 220, line = null }) {
  const board = canvasOf(width, height, { left: 52, right: 12, top: 28, bottom: 48 });
  const { svg, area } = board;
  const top = Math.max(1, ...bars.map((bar) => sum(bar.parts.map((part) => part.value))));
  const y = { ...linear(0, top, area.bottom, area.top, 4), label: (value) => show.short(value) };
  const step = (area.right - area.left) / bars.length;
  const spots = bars.map((bar, place) => ({ ...bar, at: area.left + place * step }));
  const ticked = spots.filter((bar) => bar.tick !== undefined);
  const x = { ticks: ticked.map((bar) => bar.tick), place: (tick) => ticked.find((bar) => bar.tick === tick).at, label: (tick) => tick };
  axes(board, x, y, { xLabel, yLabel });
  for (const bar of spots) {
    let base = 0;
    for (const part of bar.parts) {
      if (!part.value) continue;
      const [up, down] = [y.place(base + part.value), y.place(base)];
      svg.append(draw("rect", { x: bar.at + 0.5, y: up, width: Math.max(step - 1, 0.8), height: down - up, fill: part.color }));
      base += part.value;
    }
  }
  if (line !== null) {
    const at = area.left + line * (area.right - area.left);
    svg.append(draw("line", { x1: at, x2: at, y1: area.top - 4, y2: area.bottom, stroke: style("ink"), "stroke-width": 1.4 }));
  }
  return svg;
}

// A row a name: bars from left to right, stacked; names that are too long are cut in the middle.
function barRows(width, { rows, xLabel, top, label, mean = null }) {
  const left = Math.min(Math.round(width * 0.36), 12 + 7 * Math.max(...rows.map((row) => row.name.length)));
  const board = canvasOf(width, 26 + 22 * rows.length + 40, { left, right: 58, top: 12, bottom: 46 });
  const { svg, area } = board;
  const x = { ...linear(0, top, area.left, area.right, Math.max(2, Math.min(5, Math.floor((area.right - area.left) / 70)))), label };
  axes(board, x, { ticks: [], place: () => 0 }, { xLabel, yLabel: "", xGrid: true });
  const most = Math.max(4, Math.floor((left - 12) / 6.6));
  rows.forEach((row, place) => {
    const up = area.top + 22 * place + 3;
    svg.append(words(cut(row.name, most), area.left - 8, up + 12, { "text-anchor": "end", fill: style("ink") }));
    let at = area.left;
    for (const part of row.parts) {
      const end = at + (x.place(part.value) - area.left);
      svg.append(draw("rect", { x: at, y: up, width: Math.max(end - at, 0), height: 15, fill: part.color }));
      at = end;
    }
    svg.append(words(row.said, at + 6, up + 12, { "font-size": 11 }));
  });
  if (mean !== null) {
    const at = x.place(mean);
    svg.append(draw("line", { x1: at, x2: at, y1: area.top, y2: area.bottom, stroke: style("ink"), "stroke-width": 1.2, "stroke-dasharray": "4 3" }));
  }
  return svg;
}

function cut(text, most) {
  const left = Math.ceil((most - 1) / 2);
  return text.length <= most ? text : `${text.slice(0, left)}…${text.slice(text.length - (most - 1 - left))}`;
}
