// The frame of a figure: a caption, the drawing, buttons to save it, and its numbers as a table.

function save(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csvOf(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

const fileName = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60);

function savePng(node, name) {
  if (node instanceof HTMLCanvasElement) {
    node.toBlob((blob) => save(name, blob));
    return;
  }
  const copy = node.cloneNode(true);
  const { width, height } = node.viewBox.baseVal;
  copy.prepend(draw("rect", { width, height, fill: style("ground") }));
  const picture = new Image();
  picture.onload = () => {
    const canvas = el("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(picture, 0, 0, 2 * width, 2 * height);
    canvas.toBlob((blob) => save(name, blob));
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
}

const MOST_ROWS = 300;

const legible = (value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(6)) : value);

function tableOf(rows) {
  const [head, ...body] = rows;
  const cells = (row, tag) => row.map((value) => el(tag, tag === "th" ? { scope: "col" } : {}, legible(value) ?? ""));
  const table = el(
    "table",
    { class: "data" },
    el("thead", {}, el("tr", {}, cells(head, "th"))),
    el("tbody", {}, body.slice(0, MOST_ROWS).map((row) => el("tr", {}, cells(row, "td")))),
  );
  const rest = body.length - MOST_ROWS;
  const more = rest > 0 ? el("p", { class: "note" }, `${show.count(rest)} more rows are in the CSV.`) : null;
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers of the figure" }, table, more);
}

// `paint(width)` gives the drawing, `rows()` its numbers under a head, `words()` what a reader who cannot see it is told;
// where it is not `ready()` there is nothing to draw.
function figure(title, { paint, rows, words, note = null, wide = false, ready = () => true }) {
  const plot = el("div", { class: "plot", role: "img" });
  const numbers = el("div", { hidden: true });
  const again = () => {
    if (!ready()) return;
    const width = Math.max(plot.clientWidth || 0, 260);
    plot.replaceChildren(paint(width));
    plot.setAttribute("aria-label", `${title}. ${words()}`);
    if (!numbers.hidden) numbers.replaceChildren(tableOf(rows()));
  };
  const toggle = el("button", { type: "button", "aria-expanded": "false" }, "Table");
  toggle.addEventListener("click", () => {
    numbers.hidden = !numbers.hidden;
    toggle.setAttribute("aria-expanded", String(!numbers.hidden));
    numbers.replaceChildren(...(numbers.hidden ? [] : [tableOf(rows())]));
  });
  const png = () => savePng(plot.firstElementChild, `${fileName(title)}.png`);
  const csv = () => save(`${fileName(title)}.csv`, new Blob([csvOf(rows())], { type: "text/csv" }));
  const named = (text, action) => el("button", { type: "button", "aria-label": `${text}: ${title}`, onclick: action }, text);
  toggle.setAttribute("aria-label", `Table: ${title}`);
  const tools = el("div", { class: "tools" }, named("PNG", png), named("CSV", csv), toggle);
  const caption = el("figcaption", {}, el("span", { class: "caption" }, title), tools);
  const node = el("figure", { class: wide ? "wide" : "" }, caption, plot, note, numbers);
  redraws.add(again);
  return { node, again };
}

// What a section cannot have says why in its place.
const missing = (reason) => el("p", { class: "why" }, reason);

const legendEntry = (sample, text) => el("li", {}, sample, el("span", {}, text));
const swatch = (color, shape = "square") =>
  draw(
    "svg",
    { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" },
    shape === "square"
      ? draw("rect", { x: 1, y: 1, width: 10, height: 10, rx: 2, fill: color })
      : draw("path", { d: "M2 2 10 10M10 2 2 10", stroke: color, "stroke-width": 2 }),
  );
