// From numbers to places: linear, logarithmic, and linear near zero but logarithmic beyond; each with its ticks.

function linear(low, high, from, to, wanted = 5) {
  const [bottom, top] = low === high ? [low - 1, high + 1] : [low, high];
  const place = (value) => from + ((value - bottom) / (top - bottom)) * (to - from);
  const step = niceStep((top - bottom) / wanted);
  const ticks = [];
  for (let at = Math.ceil(bottom / step - 1e-9); at * step <= top + step * 1e-9; at++) {
    ticks.push(Number((at * step).toPrecision(12)));
  }
  return { place, ticks, label: (value) => minus(String(value)) };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

// `low` and `high` are logarithms to base 10.
function logarithmic(low, high, from, to) {
  const place = (value) => from + ((Math.log10(value) - low) / (high - low)) * (to - from);
  const ticks = [];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  for (let power = Math.ceil(low); power <= high; power++) if (power % every === 0) ticks.push(10 ** power);
  if (ticks.length < 3) {
    for (let power = Math.floor(low); power <= high; power++) {
      for (const factor of [2, 5]) ticks.push(factor * 10 ** power);
    }
  }
  const inside = ticks.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
  return { place, ticks: inside.sort((a, b) => a - b), label: powerLabel };
}

function powerLabel(value) {
  const number = Number(value.toPrecision(3));
  return number >= 0.01 && number < 1e4 ? String(number) : minus(number.toExponential(0).replace("e+", "e"));
}

// Small differences matter most, and large ones must still fit.
function symmetric(low, high, from, to) {
  const bend = (value) => (Math.abs(value) <= 1 ? value : Math.sign(value) * (1 + Math.log10(Math.abs(value))));
  const [bottom, top] = [bend(Math.min(low, -0.5)), bend(Math.max(high, 0.5))];
  const place = (value) => from + ((bend(value) - bottom) / (top - bottom)) * (to - from);
  const sizes = [0.5, 1, 2, 5, 10, 20, 50, 100];
  const every = [...sizes.map((size) => -size), 0, ...sizes].sort((a, b) => a - b);
  const ticks = every.filter((tick) => bend(tick) >= bottom && bend(tick) <= top);
  const far = [];
  for (const tick of ticks) {
    const close = far.length && Math.abs(place(tick) - place(far[far.length - 1])) < 15;
    if (!close) far.push(tick);
    else if (tick === 0) far[far.length - 1] = tick;
  }
  return { place, ticks: far, label: (value) => (value > 0 ? `+${value}` : minus(String(value))) };
}

function categories(values, from, to, label) {
  const step = (to - from) / values.length;
  const place = (value) => from + step * (values.indexOf(value) + 0.5);
  return { place, step, ticks: values, label };
}
