// The data of the page, and numbers as people read them.

const page = JSON.parse(document.getElementById("data").textContent);

function bytesOf(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) found[at] = raw.charCodeAt(at);
  return found;
}

function floatsOf(text, type) {
  const { buffer } = bytesOf(text);
  return type === "float64" ? new Float64Array(buffer) : new Float32Array(buffer);
}

// Eight entries a byte, the first the lowest; null stays null.
function bitsOf(text, length) {
  if (text === null || text === undefined) return null;
  const bytes = bytesOf(text);
  return Uint8Array.from({ length }, (_, at) => (bytes[at >> 3] >> (at & 7)) & 1);
}

// Seven bits a byte, the lowest first; after each 0 stands how many more follow it.
function countsOf(text, length) {
  const bytes = bytesOf(text);
  const found = new Float64Array(length);
  let at = 0;
  const next = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  for (let place = 0; at < bytes.length; ) {
    const value = next();
    if (value) found[place++] = value;
    else place += 1 + next();
  }
  return found;
}

const show = {
  count: (value) => Math.round(value).toLocaleString("en-US"),
  percent: (value, digits = 1) => `${(100 * value).toFixed(digits)} %`,
  number(value) {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (!Number.isFinite(value)) return "∞";
    if (size >= 1e5 || size < 1e-3) return minus(value.toExponential(1).replace("e+", "e"));
    return minus(String(Number(value.toPrecision(3))));
  },
  bytes(value) {
    if (value < 1000) return `${show.count(value)} B`;
    return value < 1e6 ? `${(value / 1e3).toFixed(1)} kB` : `${(value / 1e6).toFixed(2)} MB`;
  },
  short(value) {
    if (value === null) return "–";
    const units = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const unit = units.find(([size]) => Math.abs(value) >= size);
    return unit ? `${Number((value / unit[0]).toPrecision(3))} ${unit[1]}` : String(Math.round(value));
  },
};

function minus(text) {
  return text.replace(/-/g, "\u2212");
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
