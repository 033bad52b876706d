// The page: its head, and sections that are built when they are looked at.

const SECTIONS = [
  ["accuracy", "Accuracy", accuracySection],
  ["layers", "Layer by layer", layersSection],
  ["planes", "Which weights stay", planesSection],
  ["file", "The file", fileSection],
  ["history", "History", historySection],
  ["settings", "Settings, seeds, environment", settingsSection],
];

const built = new WeakSet();

function build(section) {
  if (built.has(section)) return;
  built.add(section);
  const [id, , make] = SECTIONS.find(([name]) => name === section.id);
  const data = page[id];
  const parts = data.why === undefined ? make(data) : [missing(data.why)];
  section.append(...parts.flat().filter(Boolean));
  section.classList.remove("waits");
  section.removeAttribute("aria-busy");
}

// What is above a section has its height before one goes there.
function buildUpTo(id) {
  const ids = SECTIONS.map(([name]) => name);
  ids.slice(0, ids.indexOf(id) + 1).forEach((name) => build(document.getElementById(name)));
}

function head() {
  const links = SECTIONS.map(([id, title]) => el("li", {}, el("a", { href: `#${id}`, onclick: () => buildUpTo(id) }, title)));
  const brand = el("p", { class: "brand" }, "prunewald");
  const row = el("div", { class: "head" }, el("div", {}, brand, el("h1", {}, page.title)), themeSwitch());
  document.getElementById("top").append(row, el("nav", { "aria-label": "Sections" }, el("ul", {}, links)));
}

function sections() {
  const main = document.getElementById("main");
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        build(entry.target);
      }
    },
    { rootMargin: "300px" },
  );
  for (const [id, title] of SECTIONS) {
    const wide = page[id].why === undefined ? "waits" : "";
    const heading = el("h2", { id: `${id}-title`, tabindex: -1 }, title);
    const section = el("section", { id, class: wide, "aria-labelledby": `${id}-title`, "aria-busy": "true" }, heading);
    main.append(section);
    seen.observe(section);
  }
}

// Paper is light, and has every section with its folds open.
function printing() {
  const root = document.documentElement;
  let theme;
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("section").forEach(build);
    document.querySelectorAll("details").forEach((one) => {
      one.open = true;
    });
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    redraw();
  });
  window.addEventListener("afterprint", () => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    redraw();
  });
}

head();
sections();
printing();
if (document.getElementById(location.hash.slice(1))?.matches("section")) {
  buildUpTo(location.hash.slice(1));
  document.querySelector(location.hash).scrollIntoView();
}
watchWidth();
