// Curves: what is drawn of a series, as points in pixels. Part of charts.js.
const curves = (() => {
  const MOST = 1000; // Points drawn of a series.

  // Keeps the lowest and the highest of each stretch, in their order.
  function thinned(length, y) {
    if (length <= MOST) return null;
    const kept = [];
    const each = length / (MOST / 2);
    for (let bin = 0; bin < MOST / 2; bin++) {
      const from = Math.floor(bin * each);
      let [low, high] = [from, from];
      for (let i = from; i < Math.floor((bin + 1) * each); i++) {
        if (y[i] < y[low] || y[low] === null) low = i;
        if (y[i] > y[high] || y[high] === null) high = i;
      }
      kept.push(...new Set([Math.min(low, high), Math.max(low, high)]));
    }
    return kept;
  }

  function prepared(spec) {
    let below = null;
    let dashed = 0;
    return spec.series.map((given, i) => {
      const all = given.edges ? given.y.map((_, at) => (given.edges[at] + given.edges[at + 1]) / 2) : given.x;
      const kept = given.edges ? null : thinned(all.length, given.y);
      const pick = (values) => (kept ? kept.map((at) => values[at]) : values);
      const stack = given.kind === "stack";
      // A tint tells a line apart already.
      const tinted = given.fill || (given.kind || "line") !== "line";
      const top = stack ? given.y.map((value, at) => (value === null ? null : value + (below ? below[at] || 0 : 0))) : given.y;
      const one = {
        ...given, kind: given.kind || "line", colour: given.colour || `--s${(i % 9) + 1}`, order: i, dash: tinted ? 0 : dashed++, indices: kept,
        of: all.length, x: pick(all), y: pick(given.y), top: pick(top), below: stack ? below : null,
      };
      if (stack) below = top;
      return one;
    });
  }

  // Pieces of a curve in pixels; a gap ends one.
  function pieces(one, values, across, up) {
    const all = [];
    let piece = null;
    values.forEach((value, i) => {
      if (value === null || value === undefined) {
        piece = null;
        return;
      }
      if (!piece) all.push((piece = []));
      if (one.edges) piece.push([across(one.edges[i]), up(value)], [across(one.edges[i + 1]), up(value)]);
      else piece.push([across(one.x[i]), up(value)]);
    });
    return all;
  }

  const path = (points) => `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}${points.length === 1 ? "h0" : ""}`;

  function near([x, y], line) {
    return line.some((piece) => piece.some(([x1, y1], i) => {
      const [x2, y2] = piece[i + 1] || [x1, y1];
      if (x < Math.min(x1, x2) - 1 || x > Math.max(x1, x2) + 1 || y < Math.min(y1, y2) - 1 || y > Math.max(y1, y2) + 1) return false;
      const length = (x2 - x1) ** 2 + (y2 - y1) ** 2;
      const part = length ? Math.min(1, Math.max(0, ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length)) : 0;
      return Math.hypot(x - x1 - part * (x2 - x1), y - y1 - part * (y2 - y1)) <= 1;
    }));
  }

  // The part of some points that lies on a line; all, where there is none.
  const shared = (points, line) => points.filter((point) => near(point, line)).length / (points.length || 1) || Number(!points.length);

  // Says of each line whether an earlier one lies on it: "", "same as …" or "mostly as …".
  function twins(lines) {
    return lines.map(({ line, one }, i) => {
      if (one.kind !== "line") return "";
      const points = line.flat();
      for (const other of lines.slice(0, i)) {
        if (other.one.kind !== "line" || !points.length) continue;
        const theirs = other.line.flat();
        if (shared(points, other.line) === 1 && shared(theirs, line) === 1) return `same as ${other.one.name}`;
        // Where both rest on the axis says nothing of two that rise apart.
        const floor = Math.max(...[...points, ...theirs].map(([, y]) => y)) - 1;
        const risen = [points, theirs].map((some) => some.filter(([, y]) => y < floor));
        if (Math.min(shared(risen[0], other.line), shared(risen[1], line)) > 0.6) return `mostly as ${other.one.name}`;
      }
      return "";
    });
  }

  // Marks at equal distances along the curve; those of different curves are out of step.
  function spots(line, order, of) {
    const every = 130;
    const found = [];
    let left = (every * (order + 0.5)) / of;
    for (const piece of line) {
      for (let i = 1; i < piece.length; i++) {
        const [[x1, y1], [x2, y2]] = [piece[i - 1], piece[i]];
        const length = Math.hypot(x2 - x1, y2 - y1);
        while (left <= length) {
          found.push([x1 + ((x2 - x1) * left) / length, y1 + ((y2 - y1) * left) / length]);
          left += every;
        }
        left -= length;
      }
    }
    return found;
  }

  return { prepared, pieces, path, twins, spots };
})();
