// Axes: what they reach, which values are written at them, and where texts fit. Part of charts.js.
const axes = (() => {
  const SPACE = 10; // Pixels between texts side by side, at least.
  const pen = document.createElement("canvas").getContext("2d");

  // Bold, as some are: what fits so fits in any case.
  function wide(text) {
    pen.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  }

  // Steps of 1, 2 or 5 times a power of ten, of which about `most` fit between the ends.
  function linearTicks([from, to], most) {
    const rough = (to - from) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
    const ticks = [];
    for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) ticks.push(+(i * step).toPrecision(12));
    return ticks;
  }

  function logTicks([from, to], steps) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++) {
      for (const step of steps) ticks.push(+(step * 10 ** power).toPrecision(12));
    }
    return ticks.filter((value) => value >= from && value <= to);
  }

  // Returns what could be written, the fullest first.
  function tickChoices(axis, range, most) {
    if (axis.ticks) {
      const within = axis.ticks.filter((value) => value >= range[0] && value <= range[1]);
      return within.map((_, every) => within.filter((_, i) => i % (every + 1) === 0));
    }
    if (axis.log) return [[1, 2, 5], [1, 3], [1]].map((steps) => logTicks(range, steps));
    return Array.from({ length: most }, (_, less) => linearTicks(range, most - less));
  }

  function reach(axis, values, zero) {
    if (axis.range) return axis.range;
    let [from, to] = [zero ? 0 : Infinity, -Infinity];
    for (const value of values) [from, to] = [Math.min(from, value), Math.max(to, value)];
    if (to < from) [from, to] = axis.log ? [1, 10] : [0, 1];
    if (from === to) [from, to] = axis.log ? [from / 2, to * 2] : zero ? [0, to || 1] : [from - 0.5, to + 0.5];
    return zero ? [from, to * 1.04] : [from, to];
  }

  function scale(axis, [from, to], start, end) {
    const along = axis.log ? Math.log : (value) => value;
    const per = (end - start) / (along(to) - along(from));
    return (value) => start + (along(value) - along(from)) * per;
  }

  // Returns the fullest of the choices that fits; where none does, one value.
  const chosen = (choices, fits) => choices.find((ticks) => ticks.length && fits(ticks)) || (choices[choices.length - 1] || []).slice(0, 1);

  // Places texts side by side in order, each within the drawing; null where two would overprint.
  function placed(texts, centres, width) {
    let end = -SPACE;
    const places = [];
    for (const [i, text] of texts.entries()) {
      const half = wide(text) / 2;
      const centre = Math.min(Math.max(centres[i], half), width - half);
      if (centre - half < end + SPACE) return null;
      end = centre + half;
      places.push(centre);
    }
    return places;
  }

  // Returns a row for each text around its centre, so that none stands on another.
  function rows(texts, centres, width) {
    const taken = [];
    return texts.map((text, i) => {
      const half = wide(text) / 2 + SPACE / 2;
      const centre = Math.min(Math.max(centres[i], half), width - half);
      const free = (row) => (taken[row] || []).every(([from, to]) => centre + half <= from || centre - half >= to);
      let row = 0;
      while (!free(row)) row++;
      (taken[row] ||= []).push([centre - half, centre + half]);
      return row;
    });
  }

  return { wide, tickChoices, reach, scale, chosen, placed, rows };
})();
