// Large models: which part of each bin stays. A bin is taken as a few points that share its weights.

const ACROSS = 3; // points of a bin along |w|
const UP = 2; // and along sigma
const BUCKETS = 1 << 14;

// The points of a plane: logarithms of |w| and sigma, how many weights each stands for, and what kind these are.
function pointsOf(plane) {
  const { weight, sigma, counts } = plane.bins;
  const [wLow, wHigh, wBins] = weight;
  const [sLow, sHigh, sBins] = sigma;
  const grid = countsOf(counts, wBins * sBins);
  const found = { x: [], y: [], n: [], kind: [] };
  const put = (x, y, n, kind) => {
    found.x.push(x);
    found.y.push(y);
    found.n.push(n);
    found.kind.push(kind);
  };
  const [wide, high] = [(wHigh - wLow) / wBins, (sHigh - sLow) / sBins];
  for (let a = 0; a < wBins; a++) {
    for (let b = 0; b < sBins; b++) {
      const n = grid[a * sBins + b];
      for (let i = 0; n && i < ACROSS; i++) {
        for (let j = 0; j < UP; j++) {
          put(wLow + wide * (a + (i + 0.5) / ACROSS), sLow + high * (b + (j + 0.5) / UP), n / (ACROSS * UP), RANKED);
        }
      }
    }
  }
  for (const [name, kind, y] of [["dead", DEAD, Infinity], ["unknown", RANKED, Infinity], ["certain", RANKED, -Infinity]]) {
    if (!plane.bins[name]) continue;
    countsOf(plane.bins[name], wBins).forEach((n, a) => {
      for (let i = 0; n && i < ACROSS; i++) put(wLow + wide * (a + (i + 0.5) / ACROSS), y, n / ACROSS, kind);
    });
  }
  const points = Object.fromEntries(Object.entries(found).map(([name, values]) => [name, Float64Array.from(values)]));
  return { ...plane, ...points, total: points.n.reduce((all, n) => all + n, 0) };
}

// One number that orders the points: of dead ones far below, then those of infinite sigma, then log tau.
function keysOf(plane, lam, deadFirst) {
  const lambda = lam === null ? 0 : lam * plane.spread;
  return plane.x.map((x, at) => {
    if (lam === null) return x;
    if (plane.kind[at] === DEAD && deadFirst) return x - 200;
    if (plane.y[at] === Infinity) return x - 100;
    const whole = 10 ** plane.y[at] + lambda; // 10^-Infinity is 0
    return whole > 0 ? x - Math.log10(whole) : x + 100;
  });
}

// The share of each point that stays where `count` weights do, of several planes in one order.
function sharesOf(planes, keys, count) {
  const excess = sum(planes.map((plane) => plane.total)) - count; // pruned ones and zeros have no points: they went before
  if (excess <= 0) return keys.map((own) => new Float64Array(own.length).fill(1));
  const { low, high, share } = cutOf(planes, keys, excess);
  return keys.map((own) => own.map((key) => (key > high ? 1 : key < low ? 0 : share)));
}

// Where the lowest `excess` weights end: a narrow bucket of keys, and which share of it stays.
function cutOf(planes, keys, excess) {
  let [low, high] = [Infinity, -Infinity];
  for (const own of keys) {
    for (let at = 0; at < own.length; at++) {
      if (own[at] < low) low = own[at];
      if (own[at] > high) high = own[at];
    }
  }
  let under = 0;
  for (let round = 0; round < 3; round++) {
    const step = (high - low) / BUCKETS || 1e-12;
    const buckets = new Float64Array(BUCKETS);
    keys.forEach((own, which) => {
      const { n } = planes[which];
      for (let at = 0; at < own.length; at++) {
        if (own[at] >= low && own[at] <= high) buckets[Math.min(BUCKETS - 1, Math.floor((own[at] - low) / step))] += n[at];
      }
    });
    let at = 0;
    while (at < BUCKETS - 1 && under + buckets[at] <= excess) under += buckets[at++];
    const share = buckets[at] ? 1 - (excess - under) / buckets[at] : 1;
    [low, high] = [low + at * step, at === BUCKETS - 1 ? high : low + (at + 1) * step];
    if (round === 2 || step < 1e-9) return { low, high, share: Math.min(Math.max(share, 0), 1) };
  }
  return null;
}

class Estimated {
  constructor(info) {
    this.info = info;
    this.planes = info.planes.map(pointsOf);
    this.plain = this.planes.map((plane) => keysOf(plane, null, false));
  }

  at(lam, level) {
    const counts = this.info.kept[this.info.levels.indexOf(level)];
    const keys = this.planes.map((plane) => keysOf(plane, lam, this.info.dead_first));
    const shares = this._shares(keys, counts);
    return this.planes.map((plane, which) => {
      const kept = shares[which];
      const stays = this.info.joint === "none" ? counts[which] : sum(Array.from(kept, (share, at) => share * plane.n[at]));
      const [abs] = sharesOf([plane], [this.plain[which]], stays);
      let [gained, lost] = [0, 0];
      for (let at = 0; at < kept.length; at++) {
        gained += plane.n[at] * Math.max(kept[at] - abs[at], 0);
        lost += plane.n[at] * Math.max(abs[at] - kept[at], 0);
      }
      const both = (gained + lost) / 2; // as many come as go
      return { plane, keys: keys[which], kept, abs, stays, gained: both, lost: both };
    });
  }

  _shares(keys, counts) {
    if (this.info.joint === "none") return this.planes.map((plane, at) => sharesOf([plane], [keys[at]], counts[at])[0]);
    const found = [];
    const names = this.planes.map((plane) => (this.info.joint === "all" ? "all" : plane.group));
    for (const name of new Set(names)) {
      const members = names.flatMap((own, at) => (own === name ? [at] : []));
      const own = members.map((at) => this.planes[at]);
      const shares = sharesOf(own, members.map((at) => keys[at]), sum(members.map((at) => counts[at])));
      shares.forEach((share, place) => {
        found[members[place]] = share;
      });
    }
    return found;
  }
}
