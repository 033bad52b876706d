// The section of planes: two sliders and one layer; whatever they change is drawn anew.

// What the sliders show, for whoever drives the page: prunewald.kept("fc1.weight") is 1 where a weight stays.
const hook = {};

let explorer = null;

function goTo(name) {
  const section = document.getElementById("planes");
  build(section);
  explorer?.pick(name);
  section.scrollIntoView();
  section.querySelector("h2").focus();
}

function planesSection(info) {
  LOOKS.tau = info.look;
  const model = info.exact ? new Exact(info) : new Estimated(info);
  const sizes = info.planes.map((plane) => plane.weights);
  const state = { lam: info.lam ?? 1, level: startLevel(info), layer: sizes.indexOf(Math.max(...sizes)), all: null };
  const choose = () => {
    state.all = info.levels.length ? model.at(state.lam, state.level) : model.planes.map((plane) => ({ plane }));
  };
  choose();
  const parts = explorerFigures(info, state);
  const refresh = () => soon(() => parts.show());
  const turn = (change) => {
    Object.assign(state, change);
    choose();
    refresh();
  };
  const lam = slider("lambda*", info.lams, state.lam, (value) => (value === 0 ? "0" : show.number(value)), (value) => turn({ lam: value }));
  const level = info.levels.length ? slider("sparsity", info.levels, state.level, levelText, (value) => turn({ level: value })) : null;
  const layer = choice("Layer", info.planes.map((plane, at) => [at, plane.name]), state.layer, (value) => {
    state.layer = Number(value);
    refresh();
  });
  const pick = (name) => {
    state.layer = Math.max(info.planes.findIndex((plane) => plane.name === name), 0);
    layer.select.value = String(state.layer);
    refresh();
  };
  const own = () => turnBack(info, lam, level, turn);
  const reset = el("button", { type: "button", onclick: own }, "Reset");
  explorer = { pick };
  hookUp(info, state, { lam, level }, turn);
  const controls = el("div", { class: "controls" }, layer.node, ...(level ? [lam.node, level.node, reset] : []));
  refresh();
  return [introOf(info), controls, ...parts.nodes, notesOf(info.notes)];
}

function startLevel(info) {
  return info.levels.includes(0.9) ? 0.9 : info.levels[0];
}

function turnBack(info, lam, level, turn) {
  const change = { lam: info.lam ?? 1, level: startLevel(info) };
  lam.set(change.lam);
  level.set(change.level);
  turn(change);
}

function introOf(info) {
  const from = info.uncertainty ? `sigma from ${info.uncertainty}` : "sigma";
  const much = info.exact ? "Every weight is here, and the sliders choose as the Pruner does." : "Layers are binned: numbers are right to about 1 %.";
  return el("p", { class: "note" }, `tau = |w| / (lambda + sigma), lambda = lambda* times the spread of the weights; ${from}, counts by ${info.scope}. ${much}`);
}

function explorerFigures(info, state) {
  const found = () => state.all[state.layer];
  const name = () => found().plane.name;
  const summary = el("p", { class: "summary", role: "status" });
  const live = Boolean(info.levels.length);
  const plane = figure("Weights of the layer: |w| against sigma", {
    paint: (width) => planeCanvas(width, found(), info, state.lam),
    rows: () => (info.exact ? weightRows(found()) : binRows(found())),
    words: () => `${name()}. ${summary.textContent}`,
    note: stateLegend(live, info),
  });
  const sides = live ? figure("Weights that change sides against |w|", {
    paint: (width) => sidesChart(width, state.all),
    rows: () => [["layer", "weights", "kept", "kept by tau alone", "kept by |w| alone"], ...state.all.map((one) => [one.plane.name, one.plane.weights, Math.round(one.stays), Math.round(one.gained), Math.round(one.lost)])],
    words: () => `How many weights of each layer tau keeps and |w| would not, at lambda* ${show.number(state.lam)} and ${levelText(state.level)}.`,
  }) : null;
  const tau = figure("Histogram of tau", { paint: (width) => tauChart(width, found(), state.lam), rows: () => tauRows(found(), state.lam), words: () => `tau of the weights of ${name()}, kept and pruned.` });
  const p = pFigure(info, found);
  const mask = figure("Mask of the layer", { paint: (width) => maskCanvas(width, found()), rows: () => maskRows(found()), words: () => maskWords(found()), note: maskNote(found) });
  const images = imageFigures(found);
  const hidden = [images.tiles, images.share];
  const all = [plane, sides, tau, p, mask].filter((one) => one?.again);
  const imaged = el("div", { class: "pair" }, hidden.map((one) => one.node));
  const none = missing("Images need weights on a grid: the kernels of a convolution, or a square number of inputs; of a large model they are of its first layer.");
  return {
    nodes: [
      summary,
      el("div", { class: "pair" }, plane.node, el("div", {}, sides?.node ?? null, tau.node)),
      el("div", { class: "pair" }, mask.node, p.node),
      imaged,
      none,
    ],
    show() {
      summary.textContent = summaryOf(found(), state, live);
      all.forEach((one) => one.again());
      const has = Boolean(tilesOf(found()));
      imaged.hidden = !has;
      none.hidden = has;
      hidden.forEach((one) => one.again());
    },
  };
}

function summaryOf({ plane, stays, gained }, state, live) {
  const dead = plane.dead_count ? `, ${show.count(plane.dead_count)} dead` : "";
  const gone = plane.pruned ? `, ${show.count(plane.pruned)} pruned already` : "";
  const head = `${plane.name}: ${show.count(plane.weights)} weights${dead}${gone}`;
  if (!live) return `${head}.`;
  const about = plane.bins ? "about " : "";
  const moved = `${about}${show.count(gained)} of them where |w| would keep others`;
  return `${head}. At lambda* ${show.number(state.lam)} and ${levelText(state.level)} in all, ${show.count(stays)} stay (${show.percent(stays / plane.weights)}), ${moved}.`;
}

function hookUp(info, state, sliders, turn) {
  const named = (name) => state.all.find((one) => one.plane.name === name);
  Object.assign(hook, {
    levels: info.levels,
    lams: info.lams,
    state: () => ({ lam: state.lam, level: state.level, layer: info.planes[state.layer].name }),
    set(change) {
      const next = { ...state, ...change };
      sliders.lam.set(next.lam);
      sliders.level?.set(next.level);
      turn({ lam: next.lam, level: next.level });
    },
    kept: (name) => Array.from(named(name).kept),
    abs: (name) => Array.from(named(name).abs),
    numbers: (name) => (({ stays, gained, lost }) => ({ stays, gained, lost }))(named(name)),
  });
  window.prunewald = hook;
}
