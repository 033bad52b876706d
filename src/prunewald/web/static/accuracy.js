// Accuracy against sparsity, method by method, and the paired differences beside it.

const WHEN = { retrained: "after retraining", pruned: "right after pruning", measured: "as given" };

function accuracySection(data) {
  const state = { network: 0, when: null, off: new Set() };
  const body = el("div");
  const show = () => {
    const network = data.networks[state.network];
    const times = [...new Set(network.methods.flatMap((one) => Object.keys(one.series)))];
    if (!times.includes(state.when)) state.when = times[0];
    body.replaceChildren(...accuracyFigures(network, state, times, show));
  };
  const names = data.networks.map((one, at) => [at, one.name]);
  const change = (value) => {
    state.network = Number(value);
    state.off.clear();
    show();
  };
  state.chooser = names.length > 1 ? choice("Network", names, 0, change).node : null;
  show();
  return [body];
}

function accuracyFigures(network, state, times, show) {
  const shown = () => network.methods.filter((one) => !state.off.has(one.label));
  const unit = network.share ? (value) => 100 * value : (value) => value;
  const controls = state.chooser ? [state.chooser] : [];
  if (times.length > 1) {
    const pick = choice("Measured", times.map((time) => [time, WHEN[time]]), state.when, (value) => {
      state.when = value;
      show();
    });
    controls.push(pick.node);
  }
  const accuracy = figure("Accuracy against sparsity", {
    paint: (width) => accuracyChart(width, network, shown(), state.when, unit),
    rows: () => accuracyRows(network, state.when),
    words: () => `Mean accuracy ${WHEN[state.when]} with 95 % intervals, of ${listed(shown())}; the numbers are in the table.`,
  });
  const compared = () => shown().filter((one) => gainOf(one, state.when));
  const gains = figure("Paired differences", {
    paint: (width) => gainChart(width, network, compared(), state.when, unit),
    rows: () => gainRows(network, state.when),
    words: () => `Points of accuracy over the method compared with, on the same networks, of ${listed(compared())}.`,
  });
  const legend = methodLegend(network, state, () => {
    accuracy.again();
    gains.again();
  });
  const kinds = new Set(network.methods.map((one) => one.allocation));
  const told = kinds.size > 1 ? ["Colour: the criterion. Dash and mark: how many weights each layer keeps (@; solid: each layer alike)."] : [];
  const notes = [...told, ...network.lines, ...network.notes].map((line) => el("p", { class: "note" }, line));
  const pair = el("div", { class: "pair" }, accuracy.node, network.methods.some((one) => one.gain) ? gains.node : null);
  later(accuracy, gains);
  return [el("div", { class: "controls" }, controls), legend, pair, ...notes];
}

// What has been put into the page can be measured, and so drawn.
function later(...figures) {
  requestAnimationFrame(() => figures.forEach((one) => one.again()));
}

const listed = (methods) => methods.map((one) => one.label).join("; ") || "none";
const gainOf = (one, when) => one.gain?.[when] ?? null;

function methodLegend(network, state, changed) {
  const entry = (one) => {
    const button = el("button", { type: "button", class: "method", "aria-pressed": "true" });
    const paint = () => {
      const color = hue(one.look);
      const line = draw("path", { d: "M0 7H30", stroke: color, "stroke-width": 1.6, "stroke-dasharray": DASHES[one.allocation] ?? "none" });
      const sample = draw("svg", { width: 30, height: 14, "aria-hidden": "true" }, line, mark(one.look.mark, 15, 7, color, one.look.fill));
      button.replaceChildren(sample, el("span", {}, one.label));
    };
    button.addEventListener("click", () => {
      if (!state.off.delete(one.label)) state.off.add(one.label);
      button.setAttribute("aria-pressed", String(!state.off.has(one.label)));
      changed();
    });
    redraws.add(paint);
    paint();
    return el("li", {}, button);
  };
  return el("ul", { class: "methods", "aria-label": "Methods, shown or hidden" }, network.methods.map(entry));
}

function seriesOf(one, own, unit, look = one.look) {
  const points = own.levels.map((level, at) => ({
    x: level,
    y: unit(own.mean[at]),
    low: own.low[at] === null ? null : unit(own.low[at]),
    high: own.high[at] === null ? null : unit(own.high[at]),
  }));
  return { label: one.label, color: hue(look), mark: look.mark, fill: look.fill, dash: DASHES[one.allocation], points };
}

const levelsOf = (all) => [...new Set(all.flatMap((own) => own.levels))].sort((a, b) => a - b);
const levelText = (level) => `${Number((100 * level).toPrecision(4))} %`;

function accuracyChart(width, network, methods, when, unit) {
  const drawn = methods.filter((one) => one.series[when]);
  const xs = levelsOf(network.methods.flatMap((one) => (one.series[when] ? [one.series[when]] : [])));
  if (!drawn.length) return el("p", { class: "why" }, "No method is shown.");
  const reference = network.dense === undefined ? null : { y: unit(network.dense), label: "dense" };
  const series = drawn.map((one) => seriesOf(one, one.series[when], unit));
  return lineChart(width, { series, xs, xText: levelText, xLabel: "pruned weights", yLabel: "accuracy (%)", scale: linear, reference });
}

function gainChart(width, network, methods, when, unit) {
  const xs = levelsOf(network.methods.flatMap((one) => (gainOf(one, when) ? [gainOf(one, when)] : [])));
  if (!methods.length) return el("p", { class: "why" }, "No method that is shown is compared with another.");
  const series = methods.map((one) => seriesOf(one, gainOf(one, when), unit));
  const how = { xText: levelText, xLabel: "pruned weights", yLabel: "points over the method compared with", scale: symmetric };
  return lineChart(width, { series, xs, ...how, zero: true, joined: false });
}

function accuracyRows(network, when) {
  const rows = [["method", "allocation", "pruned", "networks", "accuracy", "low", "high"]];
  for (const one of network.methods) {
    const own = one.series[when];
    own?.levels.forEach((level, at) => {
      rows.push([one.label, one.allocation, level, own.n[at], own.mean[at], own.low[at], own.high[at]]);
    });
  }
  return rows;
}

function gainRows(network, when) {
  const rows = [["method", "over", "pruned", "networks", "difference", "low", "high"]];
  for (const one of network.methods) {
    const own = gainOf(one, when);
    own?.levels.forEach((level, at) => rows.push([one.label, one.over, level, own.n[at], own.mean[at], own.low[at], own.high[at]]));
  }
  return rows;
}
