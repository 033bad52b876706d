// Elements, the theme, and what has to be drawn again when it or the width changes.

// Text is always set as text: names may hold markup.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(2)) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const dark = () => style("theme") === "dark";
const hue = (look) => (dark() ? look.dark : look.color);

const redraws = new Set();
function redraw() {
  for (const again of redraws) again();
}

let waiting = 0;
function soon(work) {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(work);
}

function watchWidth() {
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone hides its bars as one scrolls
    width = window.innerWidth;
    soon(redraw);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

const THEMES = ["system", "light", "dark"];

function themeSwitch() {
  const root = document.documentElement;
  const button = el("button", { type: "button", class: "quiet", id: "theme" });
  const say = () => {
    button.textContent = `Theme: ${root.dataset.theme ?? "system"}`;
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    say();
    redraw();
  });
  say();
  return button;
}

let lastId = 0;
const newId = (name) => `${name}-${++lastId}`;

function slider(label, values, start, said, changed) {
  const id = newId("slider");
  const place = values.indexOf(start);
  const input = el("input", { type: "range", id, min: 0, max: values.length - 1, step: 1, value: Math.max(place, 0) });
  const output = el("output", { for: id });
  const say = () => {
    const text = said(values[input.value]);
    output.textContent = text;
    input.setAttribute("aria-valuetext", text);
  };
  input.addEventListener("input", () => {
    say();
    changed(values[input.value]);
  });
  say();
  const node = el("div", { class: "slider" }, el("label", { for: id }, label), output, input);
  return {
    node,
    input,
    set(value) {
      input.value = Math.max(values.indexOf(value), 0);
      say();
    },
  };
}

function choice(label, options, start, changed) {
  const id = newId("choice");
  const select = el("select", { id }, options.map(([value, text]) => el("option", { value }, text)));
  select.value = start;
  select.addEventListener("change", () => changed(select.value));
  return { node: el("div", { class: "choice" }, el("label", { for: id }, label), select), select };
}
