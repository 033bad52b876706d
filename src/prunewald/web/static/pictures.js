// The mask of a layer as a picture, and the first layer as images of what it looks at.

function pixels(columns, rows, colorAt) {
  const canvas = el("canvas", { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  const picture = pen.createImageData(columns, rows);
  for (let at = 0; at < columns * rows; at++) {
    const [red, green, blue] = colorAt(at);
    picture.data.set([red, green, blue, 255], 4 * at);
  }
  pen.putImageData(picture, 0, 0);
  return canvas;
}

function rgb(color) {
  const known = color.match(/^#(..)(..)(..)$/);
  return known ? known.slice(1).map((part) => parseInt(part, 16)) : [128, 128, 128];
}

const between = (from, to, share) => from.map((part, at) => Math.round(part + (to[at] - part) * share));

function scaled(small, width, most) {
  const scale = Math.min(width / small.width, most / small.height);
  const factor = scale >= 1 ? Math.min(Math.floor(scale), 14) : scale;
  const { canvas, pen } = board(Math.max(1, Math.round(small.width * factor)), Math.max(1, Math.round(small.height * factor)));
  pen.imageSmoothingEnabled = factor < 1;
  pen.drawImage(small, 0, 0, small.width * factor, small.height * factor);
  return canvas;
}

// Of a small model what both orders do with each weight; of a large one the share that stays in each cell.
function maskCanvas(width, { plane, kept, abs }) {
  if (plane.mask) {
    const [none, all] = [rgb(style("ground-2")), rgb(style("bar"))];
    const share = bytesOf(plane.mask.kept);
    const top = share.reduce((most, value) => Math.max(most, value), 1);
    const small = pixels(plane.mask.columns, plane.mask.rows, (at) => between(none, all, share[at] / top));
    return scaled(small, width, 300);
  }
  const rows = plane.shape.length > 1 ? plane.shape[0] : 1;
  const colors = [style("ground-2"), ...stateColors().slice(1)].map(rgb);
  const own = (at) => (kept ? stateOf(kept[at], abs[at]) : plane.alive && !plane.alive[at] ? 0 : 3);
  return scaled(pixels(plane.weights / rows, rows, (at) => colors[own(at)]), width, 300);
}

// Height and width of what one output looks at: a kernel, or a square of inputs.
function gridOf(shape) {
  if (shape.length === 4) return shape[2] * shape[3] > 1 ? [shape[2], shape[3]] : null;
  const side = shape.length === 2 ? Math.round(Math.sqrt(shape[1])) : 0;
  return side > 2 && side * side === shape[1] ? [side, side] : null;
}

const MOST_TILES = 32;

// Signs, sizes and states of the first tiles, whether every weight is here or only these.
function tilesOf(found) {
  const { plane, kept } = found;
  if (plane.image) {
    const { height, width, tiles, of } = plane.image;
    const values = new Int8Array(bytesOf(plane.image.values).buffer);
    const stays = bitsOf(plane.image.kept, values.length);
    const share = Float64Array.from(bytesOf(plane.image.share), (value) => value / 255);
    return { height, width, tiles, of, share, value: (at) => values[at] / 127, stays: (at) => stays[at] };
  }
  const grid = plane.values ? gridOf(plane.shape) : null;
  if (!grid) return null;
  const [height, width] = grid;
  const of = plane.weights / (height * width);
  const top = plane.size.reduce((most, size) => Math.max(most, size), 0) || 1;
  const stays = kept ? (at) => kept[at] : plane.alive ? (at) => plane.alive[at] : () => 1;
  const share = new Float64Array(height * width);
  for (let at = 0; at < plane.weights; at++) share[at % share.length] += stays(at) / of;
  return { height, width, tiles: Math.min(of, MOST_TILES), of, share, value: (at) => plane.weight[at] / top, stays };
}

function tilesCanvas(width, found) {
  const { height, width: wide, tiles, value, stays } = tilesOf(found);
  const [negative, positive, middle, gone] = [rgb(style("negative")), rgb(style("positive")), rgb(style("ground")), rgb(style("ground-2"))];
  const columns = Math.min(tiles, wide < 8 ? 16 : 8);
  const rows = Math.ceil(tiles / columns);
  const [across, down] = [columns * (wide + 1) - 1, rows * (height + 1) - 1];
  const small = pixels(across, down, (at) => {
    const [row, column] = [Math.floor(at / across), at % across];
    const [r, c] = [row % (height + 1), column % (wide + 1)];
    const tile = Math.floor(row / (height + 1)) * columns + Math.floor(column / (wide + 1));
    if (r === height || c === wide || tile >= tiles) return middle;
    const place = tile * height * wide + r * wide + c;
    const size = Math.abs(value(place)) ** 0.6;
    return stays(place) ? between(middle, value(place) < 0 ? negative : positive, 0.25 + 0.75 * size) : gone;
  });
  return scaled(small, width, 420);
}

function shareCanvas(width, found) {
  const { height, width: wide, share } = tilesOf(found);
  const [none, all] = [rgb(style("ground-2")), rgb(style("bar"))];
  const top = Math.max(...share) || 1;
  return scaled(pixels(wide, height, (at) => between(none, all, share[at] / top)), Math.min(width, 220), 220);
}
