// What is drawn of one layer beside its plane: histograms of tau and p, who changes sides, legends, numbers.

const TAU_BINS = 48;

// The logarithm of tau of one weight or point that is ranked by it; NaN where there is none.
function logTau({ plane, order }, at, lambda) {
  if (plane.bins) return plane.kind[at] === RANKED ? plane.x[at] - Math.log10(10 ** plane.y[at] + lambda) : NaN;
  if (order && order.tier[at] !== RANKED) return NaN;
  return Math.log10(order ? order.score[at] : plane.size[at] / (plane.sigma[at] + lambda));
}

function tauBins(found, lam) {
  const { plane, kept } = found;
  const values = new Float64Array(plane.bins ? plane.x.length : plane.weights);
  let [low, high] = [Infinity, -Infinity];
  for (let at = 0; at < values.length; at++) {
    values[at] = logTau(found, at, lam * plane.spread);
    if (!Number.isFinite(values[at])) continue;
    if (values[at] < low) low = values[at];
    if (values[at] > high) high = values[at];
  }
  low = Math.max(low, high - 3);
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  const step = (high - low) / TAU_BINS;
  const bins = Array.from({ length: TAU_BINS }, () => [0, 0]);
  values.forEach((value, at) => {
    if (!Number.isFinite(value)) return;
    const bin = bins[Math.min(TAU_BINS - 1, Math.max(0, Math.floor((value - low) / step)))];
    const [n, stays] = [plane.bins ? plane.n[at] : 1, kept ? kept[at] : 1];
    bin[0] += n * stays;
    bin[1] += n * (1 - stays);
  });
  return { low, step, bins };
}

function tauChart(width, found, lam) {
  const { low, step, bins } = tauBins(found, lam);
  if (!Number.isFinite(low)) return draw("svg", { viewBox: `0 0 ${width} 60`, width, height: 60 }, words("No weight has a tau above 0.", 8, 34));
  const scale = logarithmic(low, low + step * TAU_BINS, 0, TAU_BINS);
  const colors = stateColors();
  const bars = bins.map(([stays, gone]) => ({ parts: [{ value: gone, color: style("density") }, { value: stays, color: colors[1] }] }));
  for (const tick of scale.ticks) {
    const bar = bars[Math.min(TAU_BINS - 1, Math.max(0, Math.round(scale.place(tick))))];
    bar.tick ??= powerLabel(tick);
  }
  return histogram(width, { bars, xLabel: "tau (coloured: kept; the first bar has all that is less)", yLabel: "weights" });
}

function tauRows(found, lam) {
  const { low, step, bins } = tauBins(found, lam);
  return [["tau from", "tau to", "kept", "pruned"], ...bins.map(([stays, gone], at) => [10 ** (low + at * step), 10 ** (low + (at + 1) * step), stays, gone])];
}

function pFigure(info, found) {
  if (!info.standard_error) {
    const reason = `p-values need standard errors, and sigma from ${info.uncertainty || "here"} is none.`;
    return { node: el("figure", {}, el("figcaption", {}, el("span", { class: "caption" }, "Histogram of p")), missing(reason)) };
  }
  const edges = (at) => Number((at / 20).toFixed(2));
  return figure("Histogram of p", {
    paint: (width) => {
      const bars = found().plane.p.map((value, at) => ({ parts: [{ value, color: style("bar") }], tick: at % 4 ? undefined : String(edges(at)) }));
      return histogram(width, { bars, xLabel: "two-sided p of w = 0, living weights", yLabel: "weights" });
    },
    rows: () => [["p from", "p to", "weights"], ...found().plane.p.map((value, at) => [edges(at), edges(at + 1), value])],
    words: () => `p-values of the weights of ${found().plane.name}, in twentieths.`,
  });
}

function sidesChart(width, all) {
  const colors = stateColors();
  const rows = all.map((one) => ({ name: one.plane.name, parts: [{ value: one.gained / Math.max(one.stays, 1), color: colors[1] }], said: `${one.plane.bins ? "≈ " : ""}${show.count(one.gained)}` }));
  const top = Math.max(0.01, 1.05 * Math.max(...rows.map((row) => row.parts[0].value)));
  return barRows(width, { rows, xLabel: "of what stays, kept where |w| would not", top, label: (v) => `${Number((100 * v).toPrecision(2))} %` });
}

function stateLegend(live, info) {
  const list = el("ul", { class: "legend" });
  const paint = () => {
    const colors = stateColors();
    const states = live ? [3, 1, 2, 0] : [3];
    const entries = states.map((state) => legendEntry(swatch(state === 0 && !info.exact ? style("density") : colors[state]), live ? STATES[state] : "weights"));
    const dead = legendEntry(swatch(style("dead"), info.exact ? "cross" : "square"), "dead");
    list.replaceChildren(...entries, ...(info.planes.some((plane) => plane.dead_count) ? [dead] : []));
  };
  redraws.add(paint);
  paint();
  return list;
}

function weightRows({ plane, kept, abs, order }) {
  const head = ["position", "weight", "sigma", "dead", "tau", "kept", "kept by |w|"];
  const rows = Array.from({ length: plane.weights }, (_, at) => {
    const tau = order && order.tier[at] === RANKED ? order.score[at] : "";
    return [at, plane.weight[at], plane.sigma[at], plane.dead ? plane.dead[at] : "", tau, kept ? kept[at] : "", abs ? abs[at] : ""];
  });
  return [head, ...rows];
}

function binRows({ plane, kept, abs }) {
  const rows = Array.from(plane.x, (x, at) => [10 ** x, 10 ** plane.y[at], plane.kind[at] === DEAD ? 1 : 0, plane.n[at], kept?.[at] ?? "", abs?.[at] ?? ""]);
  return [["|w|", "sigma", "dead", "weights", "share kept", "share kept by |w|"], ...rows];
}

function maskRows({ plane, kept }) {
  if (plane.mask) {
    const share = bytesOf(plane.mask.kept);
    return [["row", "column", "share kept"], ...Array.from(share, (value, at) => [Math.floor(at / plane.mask.columns), at % plane.mask.columns, value / 255])];
  }
  const columns = plane.weights / (plane.shape.length > 1 ? plane.shape[0] : 1);
  const stays = kept ?? plane.alive ?? new Uint8Array(plane.weights).fill(1);
  return [["row", "column", "kept"], ...Array.from(stays, (value, at) => [Math.floor(at / columns), at % columns, value])];
}

const maskWords = ({ plane }) => `${plane.shape.join(" by ")}: a row for each output, a column for each input${plane.mask ? ", on a coarser grid" : ""}.`;

function maskNote(found) {
  const { mask } = found().plane;
  if (!mask) return el("p", { class: "note" }, "A row for each output, a column for each input; colours as in the plane.");
  const when = mask.level === null ? "as it is now" : `as at ${levelText(mask.level)} with the Pruner's own lambda*`;
  return el("p", { class: "note" }, `A row for each output, a column for each input, in cells; the stronger the colour, the more is kept, ${when}.`);
}

function imageFigures(found) {
  const rows = () => {
    const { share, width } = tilesOf(found());
    return [["row", "column", "share kept"], ...Array.from(share, (value, at) => [Math.floor(at / width), at % width, value])];
  };
  const ready = () => Boolean(tilesOf(found()));
  const tiles = figure("What its outputs look at", {
    ready,
    paint: (width) => tilesCanvas(width, found()),
    rows,
    words: () => `The weights of ${tilesOf(found()).tiles} of ${tilesOf(found()).of} kernels or outputs of ${found().plane.name}, as images; pruned ones are blank.`,
    note: el("p", { class: "note" }, "One image for each kernel, or for each output: blue below zero, orange above, grey pruned."),
  });
  const share = figure("How much of each input is kept", { ready, paint: (width) => shareCanvas(width, found()), rows, words: () => `The share kept at each place of the images of ${found().plane.name}, over all of them.` });
  return { tiles, share };
}
