// Layer by layer: a table to search and sort, what is kept of each, and how the allocation shares out the sparsity.

const COLUMNS = [
  { key: "name", head: "layer", text: (row) => row.name },
  { key: "shape", head: "shape", value: (row) => row.weights, text: (row) => row.shape.join("×") },
  { key: "weights", head: "weights", text: (row) => show.count(row.weights) },
  { key: "kept", head: "kept", text: (row) => show.count(row.kept) },
  { key: "sparsity", head: "sparsity", value: (row) => 1 - row.kept / row.weights, text: (row) => show.percent(1 - row.kept / row.weights, 2) },
  { key: "bytes", head: "dense", text: (row) => show.bytes(row.bytes) },
  { key: "small", head: "pruned", text: (row) => show.bytes(row.small) },
  { key: "macs", head: "MACs", value: (row) => row.macs?.[0] ?? -1, text: (row) => show.short(row.macs?.[0] ?? null) },
  { key: "left", head: "left", value: (row) => row.macs?.[1] ?? -1, text: (row) => show.short(row.macs?.[1] ?? null) },
  { key: "dead", head: "dead", value: (row) => row.dead ?? -1, text: (row) => (row.dead === null ? "–" : show.percent(row.dead)) },
  { key: "overlap", head: "as ABS", value: (row) => row.overlap ?? -1, text: (row) => (row.overlap === null ? "–" : show.percent(row.overlap)) },
];

function layersSection(data) {
  const dry = data.dry_run ? "What prune(0.9) would do; nothing is pruned yet." : null;
  const sigma = data.uncertainty ? `, sigma from ${data.uncertainty}` : "";
  const pattern = data.pattern === "Element()" || !data.pattern ? "" : `, pattern ${data.pattern}`;
  const scope = data.scope ? `, counts by ${data.scope}` : "";
  const title = `Chosen by ${data.criterion}${sigma}${scope}${pattern}. Dense and pruned are sizes (${data.size}).`;
  const lines = [dry, title, data.macs ? `MACs: ${data.macs}.` : null].filter(Boolean);
  const bars = figure("What is kept of each layer", {
    paint: (width) => keptChart(width, data.rows),
    rows: () => [["layer", "weights", "kept", "share"], ...data.rows.map((row) => [row.name, row.weights, row.kept, row.kept / row.weights])],
    words: () => `The share of its weights that each of ${data.rows.length} layers keeps; dashed, the share of all. The table has the numbers.`,
  });
  const shared = sharedFigure();
  later(bars, ...(shared ? [shared] : []));
  const pair = el("div", { class: "pair" }, bars.node, shared ? shared.node : missing("How the sparsity is shared out at other levels needs the planes, which this page has not."));
  return [...lines.map((line) => el("p", { class: "note" }, line)), layerTable(data), pair, notesOf(data.notes)];
}

function notesOf(notes) {
  if (!notes.length) return null;
  return el("details", { class: "notes" }, el("summary", {}, "Notes"), el("ul", {}, notes.map((note) => el("li", {}, note))));
}

function layerTable(data) {
  const state = { by: null, up: true, search: "" };
  const body = el("tbody");
  const status = el("p", { class: "note", role: "status" });
  const heads = COLUMNS.map((column) => {
    const button = el("button", { type: "button", class: "sort" }, column.head);
    const head = el("th", { scope: "col", "aria-sort": "none" }, button);
    button.addEventListener("click", () => {
      state.up = state.by === column ? !state.up : column.key === "name";
      state.by = column;
      heads.forEach((one) => one.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      show();
    });
    return head;
  });
  const show = () => {
    const found = data.rows.filter((row) => row.name.toLowerCase().includes(state.search));
    if (state.by) found.sort((a, b) => (state.up ? 1 : -1) * order(a, b, state.by));
    body.replaceChildren(...found.map(layerRow));
    status.textContent = found.length === data.rows.length ? "" : `${found.length} of ${data.rows.length} layers`;
  };
  const id = newId("search");
  const search = el("input", { type: "search", id, autocomplete: "off" });
  search.addEventListener("input", () => {
    state.search = search.value.toLowerCase();
    show();
  });
  show();
  const foot = el("tfoot", {}, layerRow(totalOf(data.rows)));
  const table = el("table", { class: "layers" }, el("caption", { class: "hidden" }, "Layers"), el("thead", {}, el("tr", {}, heads)), body, foot);
  const scroll = el("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Table of layers" }, table);
  const named = COLUMNS.map((column) => column.head);
  const csv = () => save("layers.csv", new Blob([csvOf([named, ...data.rows.map((row) => COLUMNS.map((column) => plainCell(row, column)))])], { type: "text/csv" }));
  const tools = el("div", { class: "tools" }, el("button", { type: "button", "aria-label": "CSV: layers", onclick: csv }, "CSV"));
  return el("div", { class: "layer-table" }, el("div", { class: "controls" }, el("div", { class: "choice" }, el("label", { for: id }, "Search layers"), search), tools), status, scroll);
}

function plainCell(row, column) {
  if (column.key === "shape") return row.shape.join("x");
  if (column.key === "macs") return row.macs?.[0] ?? "";
  if (column.key === "left") return row.macs?.[1] ?? "";
  return column.key === "sparsity" ? column.value(row) : row[column.key];
}

function order(a, b, column) {
  const of = column.value ?? ((row) => row[column.key]);
  const [left, right] = [of(a), of(b)];
  return typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right;
}

function layerRow(row) {
  const plane = page.planes.planes?.some((one) => one.name === row.name);
  const name = plane ? el("button", { type: "button", class: "link", title: "Show its plane", onclick: () => goTo(row.name) }, row.name) : row.name;
  const cells = COLUMNS.slice(1).map((column) => el("td", {}, column.text(row)));
  return el("tr", {}, el("th", { scope: "row" }, name), cells);
}

function totalOf(rows) {
  const all = (key) => sum(rows.map((row) => row[key]));
  const macs = rows.every((row) => row.macs) ? [0, 1].map((at) => sum(rows.map((row) => row.macs[at]))) : null;
  const total = { name: "total", shape: [], weights: all("weights"), kept: all("kept"), bytes: all("bytes"), small: all("small") };
  return { ...total, macs, dead: null, overlap: null };
}

function keptChart(width, rows) {
  const total = totalOf(rows);
  const share = (row) => row.kept / row.weights;
  const top = Math.min(1, 1.05 * Math.max(...rows.map(share), total.kept / total.weights)) || 1;
  const bars = rows.map((row) => ({ name: row.name, parts: [{ value: share(row), color: style("bar") }], said: show.percent(share(row)) }));
  return barRows(width, { rows: bars, xLabel: "share of its weights that is kept", top, label: (v) => `${Number((100 * v).toPrecision(3))} %`, mean: total.kept / total.weights });
}

// The sparsity of each layer against that of all, where the page has the counts.
function sharedFigure() {
  const info = page.planes;
  if (!info.levels?.length || info.planes.length < 2) return null;
  const sizes = info.planes.map((plane) => plane.weights);
  const total = sum(sizes);
  const all = info.kept.map((counts) => 1 - sum(counts) / total);
  const curve = (which) => info.kept.map((counts, at) => [all[at], 1 - counts[which] / sizes[which]]);
  const few = info.planes.length <= 8;
  const paint = (width) => {
    const ramp = (which) => depth(info.planes.length < 2 ? 0 : which / (info.planes.length - 1));
    const curves = info.planes.map((plane, which) => ({ color: ramp(which), points: curve(which), thick: few ? 1.8 : 1 }));
    const from = all[0];
    curves.push({ color: style("muted"), points: [[from, from], [1, 1]], dash: "4 3", straight: true, thick: 1 });
    return curveChart(width, { curves, x: [from, 1], y: [0, 1], xLabel: "sparsity of all layers", yLabel: "sparsity of each layer" });
  };
  const made = figure(`How ${info.scope} shares out the sparsity`, {
    paint,
    rows: () => [["sparsity asked for", ...info.planes.map((plane) => plane.name)], ...info.levels.map((level, at) => [level, ...info.kept[at].map((kept, which) => 1 - kept / sizes[which])])],
    words: () => `The sparsity of each of ${info.planes.length} layers against that of all; the dashed line is the same share of each.`,
    note: depthLegend(info.planes),
  });
  return made;
}

function depth(share) {
  const [from, to] = dark() ? [[143, 196, 255], [255, 206, 120]] : [[20, 60, 130], [214, 120, 20]];
  return `rgb(${from.map((part, at) => Math.round(part + (to[at] - part) * share)).join(" ")})`;
}

function depthLegend(planes) {
  const list = el("ul", { class: "legend" });
  const shown = planes.length <= 8 ? planes.map((plane, at) => [plane, at]) : [[planes[0], 0], [planes[planes.length - 1], planes.length - 1]];
  const paint = () => list.replaceChildren(...shown.map(([plane, at]) => legendEntry(swatch(depth(at / Math.max(planes.length - 1, 1))), plane.name)));
  redraws.add(paint);
  paint();
  return list;
}
