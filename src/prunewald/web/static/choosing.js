// Which weights stay: the Pruner's own order, to the last bit. Lowest are pruned weights, then zeros, then dead ones by |w|,
// then all others by |w| / (lambda + sigma); ties by |w|, then by position.

const GONE = 0;
const ZERO = 1;
const DEAD = 2;
const RANKED = 3;

function decoded(plane) {
  const { type, weight, sigma, dead, alive } = plane.values;
  const own = { ...plane, type, weight: floatsOf(weight, type), sigma: floatsOf(sigma, type) };
  own.dead = bitsOf(dead, own.weights);
  own.alive = bitsOf(alive, own.weights);
  own.size = own.weight.map(Math.abs);
  return own;
}

// Tier and score of each weight; with `lam` null the order is that of magnitude, which looks at no dead weights.
function ranked(plane, lam, deadFirst) {
  const round = plane.type === "float64" ? (value) => value : Math.fround; // one rounding an operation, as torch's
  const lambda = lam === null ? 0 : round(lam * plane.spread);
  const tier = new Uint8Array(plane.weights);
  const score = plane.type === "float64" ? new Float64Array(plane.weights) : new Float32Array(plane.weights);
  for (let at = 0; at < plane.weights; at++) {
    const size = plane.size[at];
    score[at] = size;
    if (plane.alive && !plane.alive[at]) tier[at] = GONE;
    else if (size === 0) tier[at] = ZERO;
    else if (lam !== null && deadFirst && plane.dead && plane.dead[at]) tier[at] = DEAD;
    else {
      tier[at] = RANKED;
      if (lam !== null) score[at] = round(size / round(plane.sigma[at] + lambda));
    }
  }
  return { tier, score };
}

// The places of several planes, each with its order, from the first to be pruned to the last.
function inOrder(planes, orders) {
  const total = sum(planes.map((plane) => plane.weights));
  const [tier, score, size] = [new Uint8Array(total), new Float64Array(total), new Float64Array(total)];
  let start = 0;
  planes.forEach((plane, which) => {
    tier.set(orders[which].tier, start);
    score.set(orders[which].score, start);
    size.set(plane.size, start);
    start += plane.weights;
  });
  const places = Uint32Array.from({ length: total }, (_, at) => at);
  return places.sort((a, b) => tier[a] - tier[b] || compare(score[a], score[b]) || size[a] - size[b] || a - b);
}

// Infinite scores are equal, and their difference is no number.
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

// By plane, which of its weights stay where so many do.
function keptOf(planes, orders, count) {
  const kept = planes.map((plane) => new Uint8Array(plane.weights).fill(1));
  const starts = [];
  let total = 0;
  for (const plane of planes) {
    starts.push(total);
    total += plane.weights;
  }
  const places = inOrder(planes, orders);
  let which = 0;
  for (const place of places.subarray(0, Math.max(total - count, 0))) {
    for (which = starts.length - 1; starts[which] > place; which--);
    kept[which][place - starts[which]] = 0;
  }
  return kept.map((own, at) => living(planes[at], own));
}

function living(plane, kept) {
  return plane.alive ? kept.map((value, at) => value & plane.alive[at]) : kept;
}

// The same share of each row.
function keptByRow(plane, order, count) {
  const rows = plane.shape.length > 1 ? plane.shape[0] : 1;
  const length = plane.weights / rows;
  const kept = new Uint8Array(plane.weights);
  for (let row = 0; row < rows; row++) {
    const part = { weights: length, size: plane.size.subarray(row * length, (row + 1) * length) };
    const own = {
      tier: order.tier.subarray(row * length, (row + 1) * length),
      score: order.score.subarray(row * length, (row + 1) * length),
    };
    const [here] = keptOf([part], [own], count / rows);
    kept.set(here, row * length);
  }
  return living(plane, kept);
}

class Exact {
  constructor(info) {
    this.info = info;
    this.planes = info.planes.map(decoded);
  }

  // What stays at a sparsity of the list with this lambda*, by tau and by magnitude with the same counts.
  at(lam, level) {
    const place = this.info.levels.indexOf(level);
    const counts = this.info.kept[place];
    const orders = this.planes.map((plane) => ranked(plane, lam, this.info.dead_first));
    const kept = this._chosen(orders, counts);
    const same = kept.map((own) => sum(Array.from(own)));
    return this.planes.map((plane, which) => {
      const plain = ranked(plane, null, false);
      const abs = this.info.by_row
        ? keptByRow(plane, plain, counts[which])
        : keptOf([plane], [plain], same[which])[0];
      return { plane, order: orders[which], kept: kept[which], abs, ...changes(kept[which], abs) };
    });
  }

  _chosen(orders, counts) {
    if (this.info.by_row) return this.planes.map((plane, at) => keptByRow(plane, orders[at], counts[at]));
    const groups = new Map();
    this.planes.forEach((plane, at) => {
      const key = { none: at, layer: plane.group, all: "all" }[this.info.joint];
      groups.set(key, [...(groups.get(key) ?? []), at]);
    });
    const found = [];
    for (const members of groups.values()) {
      const own = members.map((at) => this.planes[at]);
      const count = sum(members.map((at) => counts[at]));
      keptOf(own, members.map((at) => orders[at]), count).forEach((kept, place) => {
        found[members[place]] = kept;
      });
    }
    return found;
  }
}

function changes(kept, abs) {
  let [stays, gained, lost] = [0, 0, 0];
  for (let at = 0; at < kept.length; at++) {
    stays += kept[at];
    gained += kept[at] & (1 - abs[at]);
    lost += abs[at] & (1 - kept[at]);
  }
  return { stays, gained, lost };
}
