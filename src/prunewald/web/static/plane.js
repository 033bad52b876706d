// The plane of |w| against sigma: every weight, or the density of many, and the line between what stays and what goes.

const STATES = ["pruned by both", "kept by tau alone", "kept by |w| alone", "kept by both"];
const stateOf = (kept, abs) => (kept ? (abs ? 3 : 1) : abs ? 2 : 0);

function stateColors() {
  const tau = hue(LOOKS.tau);
  return [style("faint"), tau, style("ink"), style("both")];
}

// Colours of the two orders that are compared: that of tau by where its sigma comes from.
const LOOKS = { tau: { color: "#d62728", dark: "#e0494a" } };

function board(width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const canvas = el("canvas", { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = style("ground");
  pen.fillRect(0, 0, width, height);
  pen.font = `12px ${FONT}`;
  return { canvas, pen, width, height };
}

// Logarithms between which nearly all weights are, and no further above the median than shows where most of them are.
function windowOf(values, weights, reach) {
  const places = Uint32Array.from(values.keys()).sort((a, b) => values[a] - values[b]);
  const total = weights ? sum(Array.from(weights)) : values.length;
  const at = (share) => {
    let passed = 0;
    for (const place of places) {
      passed += weights ? weights[place] : 1;
      if (passed >= share * total) return values[place];
    }
    return values[places[places.length - 1]];
  };
  if (!places.length) return [-1, 0];
  const [low, high] = [Math.max(at(0.002), at(0.5) - 4), Math.min(at(reach), at(0.5) + 3)];
  return high - low > 0.02 ? [low - 0.03 * (high - low), high + 0.03 * (high - low)] : [low - 0.5, low + 0.5];
}

// The logarithms that the axes run over, and whether some sigmas are beyond them: these stand in a strip at the edge.
function extent(plane) {
  const binned = Boolean(plane.bins);
  const [xs, ys, ns] = [[], [], []];
  let [above, below] = [false, false];
  for (let at = 0; at < (binned ? plane.x.length : plane.weights); at++) {
    const x = binned ? plane.x[at] : Math.log10(plane.size[at]);
    const y = binned ? plane.y[at] : Math.log10(plane.sigma[at]);
    if (!Number.isFinite(x)) continue;
    if (y === Infinity) above = true;
    else if (y === -Infinity) below = true;
    else {
      xs.push(x);
      ys.push(y);
      ns.push(binned ? plane.n[at] : 1);
    }
  }
  const [x, y] = [windowOf(Float64Array.from(xs), ns, 1), windowOf(Float64Array.from(ys), ns, 0.995)];
  const outside = (test) => ys.some(test);
  return { x, y, above: above || outside((one) => one > y[1]), below: below || outside((one) => one < y[0]) };
}

function planeCanvas(width, found, info, lam) {
  const { plane } = found;
  const height = Math.round(Math.min(460, Math.max(300, width * 0.72)));
  const { canvas, pen } = board(width, height);
  plane.extent ??= extent(plane); // of a large layer the axes take longer than all else, and no slider moves them
  const span = plane.extent;
  const area = { left: 56, right: width - 14, top: 26, bottom: height - 48 };
  const [upper, lower] = [area.top + (span.above ? 22 : 4), area.bottom - (span.below ? 22 : 4)];
  const x = logarithmic(span.x[0], span.x[1], area.left + 6, area.right - 6);
  const y = logarithmic(span.y[0], span.y[1], lower, upper);
  planeAxes(pen, area, x, y, span);
  pen.save();
  pen.beginPath();
  pen.rect(area.left, area.top - 4, area.right - area.left, area.bottom - area.top + 8);
  pen.clip();
  const places = { x, y, above: area.top + 6, below: area.bottom - 6, low: 10 ** span.y[0], high: 10 ** span.y[1] };
  if (plane.bins) paintCells(pen, found, places, span);
  else paintPoints(pen, found, places);
  if (found.kept) boundaries(pen, found, info, lam, places, span, area);
  pen.restore();
  return canvas;
}

function planeAxes(pen, area, x, y, span) {
  pen.lineWidth = 1;
  pen.fillStyle = style("muted");
  const rule = (x1, y1, x2, y2, color) => {
    pen.strokeStyle = color;
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
  };
  pen.textAlign = "right";
  for (const tick of y.ticks) {
    rule(area.left, y.place(tick), area.right, y.place(tick), style("grid"));
    pen.fillText(y.label(tick), area.left - 8, y.place(tick) + 4);
  }
  if (span.above) pen.fillText("more", area.left - 8, area.top + 10);
  if (span.below) pen.fillText("less", area.left - 8, area.bottom - 2);
  pen.textAlign = "center";
  for (const tick of x.ticks) {
    rule(x.place(tick), area.top, x.place(tick), area.bottom, style("grid"));
    pen.fillText(x.label(tick), x.place(tick), area.bottom + 18);
  }
  rule(area.left, area.bottom, area.right, area.bottom, style("muted"));
  pen.fillText("|w|", (area.left + area.right) / 2, area.bottom + 38);
  pen.textAlign = "left";
  pen.fillText("sigma", 16, area.top - 10);
}

const spotOf = (sigma, { y, above, below, low, high }) => (sigma < low ? below : sigma > high ? above : y.place(sigma));

// Pruned ones first, then what both keep, and on top what changes sides; dead weights are crosses.
function paintPoints(pen, { plane, kept, abs }, places) {
  const colors = stateColors();
  const radius = plane.weights > 6000 ? 1.4 : plane.weights > 1500 ? 1.8 : 2.6;
  const states = Uint8Array.from({ length: plane.weights }, (_, at) => (kept ? stateOf(kept[at], abs[at]) : 3));
  for (const state of [0, 3, 2, 1]) {
    const changed = state === 1 || state === 2;
    pen.fillStyle = colors[state];
    pen.globalAlpha = changed ? 0.95 : 0.5;
    for (let at = 0; at < plane.weights; at++) {
      if (states[at] !== state || plane.size[at] === 0 || (plane.dead && plane.dead[at])) continue;
      pen.beginPath();
      pen.arc(places.x.place(plane.size[at]), spotOf(plane.sigma[at], places), changed ? radius + 0.4 : radius, 0, 7);
      pen.fill();
    }
  }
  pen.globalAlpha = 0.8;
  pen.lineWidth = 1;
  for (let at = 0; plane.dead && at < plane.weights; at++) {
    if (!plane.dead[at] || plane.size[at] === 0) continue;
    const [left, up] = [places.x.place(plane.size[at]), spotOf(plane.sigma[at], places)];
    pen.strokeStyle = states[at] === 3 ? colors[3] : style("dead");
    pen.beginPath();
    pen.moveTo(left - 2, up - 2);
    pen.lineTo(left + 2, up + 2);
    pen.moveTo(left + 2, up - 2);
    pen.lineTo(left - 2, up + 2);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

// How many weights of each bin are in each state, and how many of each bin of |w| are in the strips at the edges.
function cellsOf({ plane, kept, abs }, span) {
  const { weight, sigma } = plane.bins;
  const [wide, high] = [(weight[1] - weight[0]) / weight[2], (sigma[1] - sigma[0]) / sigma[2]];
  const cells = new Map();
  const strips = { dead: new Float64Array(weight[2]), above: new Float64Array(weight[2]), below: new Float64Array(weight[2]) };
  for (let at = 0; at < plane.x.length; at++) {
    const a = Math.min(weight[2] - 1, Math.floor((plane.x[at] - weight[0]) / wide));
    const strip = plane.kind[at] === DEAD ? "dead" : plane.y[at] > span.y[1] ? "above" : plane.y[at] < span.y[0] ? "below" : null;
    if (strip) {
      strips[strip][a] += plane.n[at];
      continue;
    }
    const b = Math.min(sigma[2] - 1, Math.floor((plane.y[at] - sigma[0]) / high));
    const key = a * sigma[2] + b;
    if (!cells.has(key)) cells.set(key, [0, 0, 0, 0]);
    const cell = cells.get(key);
    const [n, k, m] = kept ? [plane.n[at], kept[at], abs[at]] : [plane.n[at], 1, 1];
    cell[0] += n * Math.min(1 - k, 1 - m);
    cell[1] += n * Math.max(k - m, 0);
    cell[2] += n * Math.max(m - k, 0);
    cell[3] += n * Math.min(k, m);
  }
  return { cells, strips, wide, high };
}

// The density of the bins, in the colour of the state that most weights of a bin have.
function paintCells(pen, found, places, span) {
  const { weight, sigma } = found.plane.bins;
  const { cells, strips, wide, high } = cellsOf(found, span);
  const colors = stateColors();
  const most = Math.log1p(Math.max(1, ...Array.from(cells.values(), sum)));
  const left = (a) => places.x.place(10 ** (weight[0] + wide * a));
  const up = (b) => places.y.place(10 ** (sigma[0] + high * b));
  const across = (a) => Math.max(left(a + 1) - left(a), 1) + 0.3;
  for (const [key, cell] of cells) {
    const [a, b] = [Math.floor(key / sigma[2]), key % sigma[2]];
    const total = sum(cell);
    const changed = cell[1] + cell[2] > 0.25 * total;
    const state = changed ? (cell[1] >= cell[2] ? 1 : 2) : cell[3] >= cell[0] ? 3 : 0;
    pen.globalAlpha = 0.12 + 0.88 * (Math.log1p(total) / most);
    pen.fillStyle = state === 0 ? style("density") : colors[state];
    pen.fillRect(left(a), up(b + 1), across(a), Math.max(up(b) - up(b + 1), 1) + 0.3);
  }
  const edges = [["above", places.above, "density"], ["below", places.below, "density"], ["dead", places.above, "dead"]];
  for (const [name, at, color] of edges) {
    const tall = Math.log1p(Math.max(1, ...strips[name]));
    pen.fillStyle = style(color);
    strips[name].forEach((n, a) => {
      pen.globalAlpha = n ? 0.15 + 0.85 * (Math.log1p(n) / tall) : 0;
      pen.fillRect(left(a), at - 6, across(a), 11);
    });
  }
  pen.globalAlpha = 1;
}

// The lowest |w|, and the lowest tau, that stay.
function thresholds({ plane, kept, abs, order, keys }) {
  let [size, tau] = [Infinity, Infinity];
  if (plane.bins) {
    for (let at = 0; at < plane.x.length; at++) {
      if (abs[at] > 0.5) size = Math.min(size, plane.x[at]);
      if (kept[at] > 0.5 && keys[at] > -90) tau = Math.min(tau, keys[at]);
    }
    return { size: 10 ** size, tau: 10 ** tau };
  }
  for (let at = 0; at < plane.weights; at++) {
    if (abs[at]) size = Math.min(size, plane.size[at]);
    if (kept[at] && order.tier[at] === RANKED) tau = Math.min(tau, order.score[at]);
  }
  return { size, tau };
}

function boundaries(pen, found, info, lam, places, span, area) {
  const { size, tau } = thresholds(found);
  const lambda = lam * found.plane.spread;
  const low = 10 ** (span.y[0] - 0.3);
  const high = 10 ** (span.y[1] + 0.3);
  pen.lineWidth = 1.6;
  pen.setLineDash([5, 4]);
  pen.strokeStyle = style("ink");
  if (Number.isFinite(size)) {
    pen.beginPath();
    pen.moveTo(places.x.place(size), area.top);
    pen.lineTo(places.x.place(size), area.bottom);
    pen.stroke();
  }
  pen.setLineDash([]);
  pen.strokeStyle = stateColors()[1];
  if (!Number.isFinite(tau) || tau <= 0) return;
  pen.beginPath();
  for (let step = 0; step <= 120; step++) {
    const sigma = low * (high / low) ** (step / 120);
    const [left, up] = [places.x.place(tau * (lambda + sigma)), places.y.place(sigma)];
    if (step) pen.lineTo(left, up);
    else pen.moveTo(left, up);
  }
  pen.stroke();
}
