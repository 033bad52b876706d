// Where the bytes of the file are, the history of a gradual pruning, and what it was made with.

const BYTES = [["values", "values"], ["positions", "places"], ["codebook", "codebook"], ["overhead", "overhead"]];

function fileSection(data) {
  const colors = () => [style("bar"), style("bar-2"), style("positive"), style("faint-ink")];
  const line = `${data.path}: ${show.count(data.size)} bytes, ${show.count(data.header)} of them header and report; format ${data.format}.`;
  const top = Math.max(1, ...data.tensors.map((row) => sum(BYTES.map(([key]) => row[key]))));
  const made = figure("Bytes of the file by tensor", {
    wide: true,
    paint: (width) => {
      const rows = data.tensors.map((row) => ({
        name: row.name,
        parts: BYTES.map(([key], at) => ({ value: row[key], color: colors()[at] })),
        said: show.bytes(sum(BYTES.map(([key]) => row[key]))),
      }));
      return barRows(width, { rows, xLabel: "bytes", top, label: (value) => show.bytes(value) });
    },
    rows: () => [
      ["tensor", "shape", "stored as", "weights", "kept", ...BYTES.map(([, name]) => name), "bound"],
      ...data.tensors.map((row) => [row.name, row.shape.join("x"), row.stored, row.weights, row.kept, ...BYTES.map(([key]) => row[key]), row.bound]),
    ],
    words: () => `${data.tensors.length} tensors, ${show.count(data.size)} bytes in all, by what the bytes are for; the table has the numbers.`,
    note: bytesLegend(colors),
  });
  later(made);
  return [el("p", { class: "note" }, line), made.node];
}

function bytesLegend(colors) {
  const list = el("ul", { class: "legend" });
  const paint = () => list.replaceChildren(...BYTES.map(([, name], at) => legendEntry(swatch(colors()[at]), name)));
  redraws.add(paint);
  paint();
  return list;
}

function historySection(data) {
  const last = data.prunings[data.prunings.length - 1];
  const made = figure("Sparsity by step", {
    wide: true,
    paint: (width) => {
      const reached = data.prunings.map(([step, , got]) => [step, got]);
      const asked = data.prunings.map(([step, wanted]) => [step, wanted]);
      const curves = [{ color: style("muted"), points: asked, straight: true, dash: "4 3", thick: 1.2 }, { color: hue(LOOKS.tau), points: reached, dots: reached }];
      return curveChart(width, { curves, x: [0, last[0]], y: [0, 1], xLabel: "step of the optimizer", yLabel: "pruned", percent: [false, true], steps: true });
    },
    rows: () => [["step", "asked for", "reached"], ...data.prunings],
    words: () => `${data.prunings.length} prunings by ${data.schedule}, the last at step ${show.count(last[0])} to ${show.percent(last[2])}.`,
  });
  later(made);
  return [el("p", { class: "note" }, `${data.schedule}; dashed, what was asked for.`), made.node];
}

function settingsSection(data) {
  const rows = (group) => group.rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)));
  const fold = (group) => el("details", {}, el("summary", {}, group.name), el("table", { class: "facts" }, el("tbody", {}, rows(group))));
  return data.groups.map(fold);
}
