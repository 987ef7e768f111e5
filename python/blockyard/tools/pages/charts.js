// Small charts in SVG. They are as wide as their box, have the colours of page.css, and are read with a
// pointer or, once focused, with the arrow keys, Home, End and Escape.
//
// charts.plot(parent, spec) adds a figure of curves over x, and returns it. Of `spec` only `series` is needed:
//   id, title, note     the figure's id, what it shows, and a smaller line below
//   height              of the drawing in pixels, 260 by default
//   x, y                axes, each of
//     label             what is measured, with its unit
//     log               true for a logarithmic axis; values must be above zero
//     range             [from, to]; by default what the values need, and y from zero
//     whole             true: things that are counted; no tick has a fraction
//     ticks             the values to write, of which every other one is left out until none overprints
//                       another; or lists of them, the fullest first, of which the first that fits is taken
//     format            (value) => text of a tick; "1,234" by default
//     read              (value) => text in the readout; by default as `format`
//   marks               [{ x, label }]: vertical lines with a word above, such as a knee
//   along               "x", the default, or "y": what the pointer chooses, and all curves are read at.
//                       "y" suits a cumulative distribution: at 90 %, each curve's duration
//   series              curves in the order in which they are drawn, each of
//     name, full        a short name, and a longer one that is shown when the pointer rests on it
//     y                 numbers; null leaves a gap
//     x                 as many numbers, rising; or instead
//     edges             one number more: y[i] holds from edges[i] to edges[i + 1], drawn as steps
//     kind              "line", the default; "stack": on top of the stacked series before it; "bars": from
//                       zero. The last two need edges
//     fill              true: the area below a line is tinted
//     dots              true: a mark at every point, where there are few
//     colour            a variable of page.css, such as "--device"; by default --s1, --s2 … in turn
//     read              (i) => text in the readout; by default the axis's `read` of y[i]
// Lines differ in marks as well as in colour, and in dashes if they are not tinted. Of a line that lies on
// an earlier one, to the pixel, the legend says which. Of more than 1,000 points the lowest and the highest of each stretch are
// drawn, and the note says how many there are. What is drawn is in `figure.drawn`, for tests.
//
// charts.bars(parent, spec) adds horizontal bars, and returns the figure:
//   id, title, note     as above
//   rows                [{ name, full }], one for each row
//   series              [{ name, values, texts, colour }]: a value for each row, and the text beside it
//   stack               true: the bars of a row follow each other; the last text stands for all
const charts = (() => {
  const { add } = elements;
  const { wide } = axes;
  const NAMESPACE = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
  const DASHES = ["", "9 4", "2 4", "12 4 2 4", "5 3", "14 5", "2 2", "8 3 2 3 2 3", "4 6"];
  const MARKS = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "M-4 -4h8v8h-8z", "M0 -5L5 4H-5z", "M0 -5L5 0L0 5L-5 0z", "M0 5L5 -4H-5z",
    "M-1.5 -5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z", "M-5 -2h10v4h-10z", "M-2 -5h4v10h-4z", "M0 -5L5 -1L3 5H-3L-5 -1z",
  ];
  const plain = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 6 });

  function svg(parent, tag, attributes, text) {
    const element = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  const colour = (one) => `var(${one.colour})`;

  function spot(parent, one, [x, y]) {
    svg(parent, "path", { d: MARKS[one.order % MARKS.length], transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, class: "spot", style: `fill: ${colour(one)}; stroke: var(--panel)` });
  }

  function sample(parent, one, marked) {
    const box = svg(parent, "svg", { width: 26, height: 12, "aria-hidden": "true" });
    if (one.kind !== "line") svg(box, "rect", { x: 1, y: 1, width: 24, height: 10, style: `fill: ${colour(one)}; stroke: ${colour(one)}`, "fill-opacity": one.kind === "stack" ? 0.55 : 1 });
    else svg(box, "path", { d: "M0 6H26", class: "curve", style: `stroke: ${colour(one)}; stroke-width: 2.5; stroke-dasharray: ${DASHES[one.dash % DASHES.length] || "none"}` });
    if (marked && one.kind === "line") spot(box, one, [13, 6]);
  }

  // ---- the figure ----

  function frame(parent, spec) {
    const figure = add(parent, "figure", undefined, { class: "chart", ...(spec.id ? { id: spec.id } : {}) });
    const caption = add(figure, "figcaption", spec.title || "");
    add(caption, "small", spec.note || "");
    const legend = add(figure, "ul", undefined, { class: "legend" });
    return { figure, caption, legend };
  }

  function plot(parent, spec) {
    const { figure, caption, legend } = frame(parent, spec);
    const series = curves.prepared(spec);
    const long = series.filter((one) => one.indices);
    if (long.length) caption.querySelector("small").append(`${spec.note ? "; " : ""}${plain(long[0].indices.length)} of ${plain(long[0].of)} points drawn`);
    const box = add(figure, "div", undefined, { class: "plot" });
    const canvas = svg(box, "svg", { role: "img", tabindex: 0, "aria-label": [spec.title, spec.note, series.map((one) => one.name).join(", ")].filter(Boolean).join(". ") });
    const state = { spec: { x: {}, y: {}, marks: [], along: "x", height: 260, ...spec }, series, box, canvas, legend };
    figure.drawn = series.map(({ name, x, y, colour: of, kind }) => ({ name, x, y, colour: of, kind }));
    listen(state);
    draw(state);
    // A box that is hidden, or turned with the screen, is drawn when it has its width.
    new ResizeObserver(() => setTimeout(() => { if (box.clientWidth !== state.width) draw(state); })).observe(box);
    return figure;
  }

  function draw(state) {
    const { spec, series, box, canvas, legend } = state;
    const width = (state.width = box.clientWidth);
    if (!width) return;
    const height = spec.height;
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);

    const xRange = axes.reach(spec.x, series.flatMap((one) => one.edges || one.x).concat(spec.marks.map((mark) => mark.x)), false);
    const yRange = axes.reach(spec.y, series.flatMap((one) => one.top.filter((value) => value !== null)), !spec.y.log);
    const format = { x: spec.x.format || plain, y: spec.y.format || plain };
    const bottom = height - 22 - (spec.x.label ? 18 : 0);
    const header = 8 + (spec.y.label ? 18 : 0);
    const yTicks = axes.chosen(axes.tickChoices(spec.y, yRange, Math.floor((bottom - header) / 40)), (ticks) => {
      const places = ticks.map(axes.scale(spec.y, yRange, bottom, header + 17 * Math.min(2, spec.marks.length)));
      return places.every((place, i) => !i || places[i - 1] - place >= 15);
    });
    const left = Math.max(14, ...yTicks.map((value) => wide(format.y(value)))) + 8;
    const right = width - 12;
    const across = (state.across = axes.scale(spec.x, xRange, left, right));
    const rows = axes.rows(spec.marks.map((mark) => mark.label), spec.marks.map((mark) => across(mark.x)), width);
    const top = header + 17 * (Math.max(-1, ...rows) + 1);
    const up = (state.up = axes.scale(spec.y, yRange, bottom, top));
    const xTicks = axes.chosen(axes.tickChoices(spec.x, xRange, Math.max(2, Math.floor((right - left) / 60))), (ticks) => axes.placed(ticks.map(format.x), ticks.map(across), width));
    const xPlaces = axes.placed(xTicks.map(format.x), xTicks.map(across), width) || [];
    Object.assign(state, { left, right, top, bottom });

    for (const value of yTicks) {
      svg(canvas, "path", { d: `M${left} ${up(value)}H${right}`, class: "gridline" });
      svg(canvas, "text", { x: left - 8, y: up(value) + 4, "text-anchor": "end" }, format.y(value));
    }
    xTicks.forEach((value, i) => {
      svg(canvas, "path", { d: `M${across(value)} ${top}V${bottom}`, class: "gridline" });
      svg(canvas, "path", { d: `M${across(value)} ${bottom}v4`, class: "axis" });
      if (i in xPlaces) svg(canvas, "text", { x: xPlaces[i], y: bottom + 17, "text-anchor": "middle" }, format.x(value));
    });
    svg(canvas, "path", { d: `M${left} ${bottom}H${right}`, class: "axis" });
    if (spec.y.label) svg(canvas, "text", { x: 0, y: 12 }, spec.y.label);
    if (spec.x.label) svg(canvas, "text", { x: right, y: height - 6, "text-anchor": "end" }, spec.x.label);

    // What lies outside of a range is cut off; a line on the edge keeps its width.
    const inner = svg(canvas, "svg", { x: left - 5, y: top - 5, width: right - left + 10, height: bottom - top + 10, viewBox: `${left - 5} ${top - 5} ${right - left + 10} ${bottom - top + 10}` });
    const lines = series.map((one) => ({ one, line: curves.pieces(one, one.top, across, up) }));
    const marked = series.filter((one) => one.kind === "line").length > 1;
    for (const { one, line } of lines) curve(inner, one, line, state);
    for (const { one, line } of lines) {
      if (one.kind !== "line") continue;
      if (one.dots) line.flat().forEach((point) => spot(inner, one, point));
      else if (marked) curves.spots(line, one.order, series.length).forEach((point) => spot(inner, one, point));
    }
    // The words come last: they cover the lines of other marks that pass behind them.
    spec.marks.forEach((mark, i) => svg(canvas, "path", { d: `M${across(mark.x)} ${top - 17 * rows[i] - 2}V${bottom}`, class: "mark" }));
    spec.marks.forEach((mark, i) => {
      const half = wide(mark.label) / 2;
      const middle = Math.min(Math.max(across(mark.x), half), width - half);
      svg(canvas, "text", { x: middle, y: top - 17 * rows[i] - 6, "text-anchor": "middle", class: "mark-label" }, mark.label);
    });
    explain(legend, lines, marked);
  }

  function curve(parent, one, line, { up, across }) {
    const style = `stroke: ${colour(one)}; stroke-width: ${one.order ? 2 : 2.5}; stroke-dasharray: ${DASHES[one.dash % DASHES.length] || "none"}`;
    const floor = one.below ? curves.pieces(one, one.top.map((value, i) => (value === null ? null : one.below[i] || 0)), across, up) : null;
    line.forEach((points, i) => {
      if (one.kind !== "line" || one.fill) {
        const base = floor ? floor[i] : [[points[0][0], up(0)], [points[points.length - 1][0], up(0)]];
        svg(parent, "path", { d: `${curves.path(points)}L${curves.path([...base].reverse()).slice(1)}z`, style: `fill: ${colour(one)}`, "fill-opacity": one.kind === "bars" ? 1 : one.kind === "stack" ? 0.55 : 0.15, class: "area" });
      }
      if (one.kind !== "bars") svg(parent, "path", { d: curves.path(points), class: "curve", style });
    });
  }

  function explain(legend, lines, marked) {
    legend.replaceChildren();
    curves.twins(lines).forEach((twin, i) => {
      const { one } = lines[i];
      const entry = add(legend, "li", undefined, one.full ? { title: one.full } : {});
      sample(entry, one, marked);
      add(entry, "span", one.name);
      if (twin) add(entry, "em", `(${twin})`);
    });
  }

  // ---- reading ----

  function listen(state) {
    const { canvas, box, spec, series } = state;
    const points = Math.max(0, ...series.map((one) => one.x.length));
    const place = (event) => {
      const inside = canvas.getBoundingClientRect();
      // In print and in zoom the drawing is scaled.
      const per = state.width / (inside.width || 1);
      return spec.along === "y" ? (event.clientY - inside.top) * per : (event.clientX - inside.left) * per;
    };
    const forget = () => {
      state.chosen = undefined;
      box.querySelector(".readout")?.remove();
      canvas.querySelector(".reading")?.remove();
    };
    canvas.addEventListener("pointermove", (event) => read(state, place(event)));
    canvas.addEventListener("pointerdown", (event) => read(state, place(event)));
    canvas.addEventListener("pointerleave", forget);
    canvas.addEventListener("blur", forget);
    canvas.addEventListener("keydown", (event) => {
      const longest = series.find((one) => one.x.length === points);
      const last = points - 1;
      const before = state.chosen ?? -1;
      const next = { ArrowRight: before + 1, ArrowUp: before + 1, ArrowLeft: before - 1, ArrowDown: before - 1, Home: 0, End: last }[event.key];
      if (event.key === "Escape") forget();
      if (next === undefined || !longest || !state.across) return;
      event.preventDefault();
      state.chosen = Math.min(Math.max(next, 0), last);
      read(state, spec.along === "y" ? state.up(longest.top[state.chosen] ?? 0) : state.across(longest.x[state.chosen]), state.chosen);
    });
  }

  function nearest(values, to, wanted) {
    let best = -1;
    values.forEach((value, i) => {
      if (value !== null && value !== undefined && (best < 0 || Math.abs(to(value) - wanted) < Math.abs(to(values[best]) - wanted))) best = i;
    });
    return best;
  }

  function read(state, wanted) {
    const { spec, series, canvas, box, across, up, left, right, top, bottom } = state;
    if (!across) return;
    const byY = spec.along === "y";
    const found = series.map((one) => nearest(byY ? one.y : one.x, byY ? up : across, wanted));
    const at = (i) => (byY ? up(series[i].y[found[i]]) : across(series[i].x[found[i]]));
    // The nearest point of any series is where all are read.
    const best = series.map((_, i) => i).filter((i) => found[i] >= 0).sort((a, b) => Math.abs(at(a) - wanted) - Math.abs(at(b) - wanted))[0];
    if (best === undefined) return;
    state.chosen = found[best];
    canvas.querySelector(".reading")?.remove();
    box.querySelector(".readout")?.remove();
    const group = svg(canvas, "g", { class: "reading" });
    svg(group, "path", { d: byY ? `M${left} ${at(best)}H${right}` : `M${at(best)} ${top}V${bottom}`, class: "cross" });
    const axis = byY ? spec.y : spec.x;
    const readout = add(box, "div", undefined, { class: "readout", role: "status" });
    const value = byY ? series[best].y[found[best]] : series[best].x[found[best]];
    add(readout, "b", (axis.read || axis.format || plain)(value));
    series.forEach((one, i) => {
      const point = found[i];
      if (point < 0) return;
      const line = add(readout, "div");
      const name = add(line, "span");
      sample(name, one, series.length > 1);
      name.append(one.name);
      const other = byY ? spec.x : spec.y;
      const gap = one.top[point] === null;
      const text = () => (one.read ? one.read(one.indices ? one.indices[point] : point) : (other.read || other.format || plain)(byY ? one.x[point] : one.y[point]));
      add(line, "span", gap ? "–" : text());
      if (!gap) spot(group, one, [across(one.x[point]), up(one.top[point])]);
    });
    const middle = byY ? (left + right) / 2 : at(best);
    const x = across(series[best].x[found[best]]);
    readout.style[(byY ? x : middle) > state.width / 2 ? "left" : "right"] = `${byY ? 40 : Math.max(8, middle > state.width / 2 ? left : 8)}px`;
  }

  // ---- bars ----

  function bars(parent, spec) {
    const { figure, legend } = frame(parent, spec);
    figure.classList.add("bars");
    const series = spec.series.map((one, i) => ({ colour: `--s${i + 1}`, kind: "bars", order: i, ...one }));
    if (series.length > 1) {
      for (const one of series) {
        const entry = add(legend, "li");
        sample(entry, one, false);
        add(entry, "span", one.name);
      }
    }
    const total = (row) => series.reduce((sum, one) => sum + one.values[row], 0);
    const most = Math.max(...spec.rows.map((_, row) => (spec.stack ? total(row) : Math.max(...series.map((one) => one.values[row])))), 0) || 1;
    const texts = series.flatMap((one) => one.texts || []).filter(Boolean);
    const room = Math.max(0, ...texts.map(wide)) + 10;
    spec.rows.forEach((row, at) => {
      const line = add(figure, "div", undefined, { class: "row" });
      add(line, "div", row.name, { class: "name", ...(row.full ? { title: row.full } : {}) });
      const piece = (bar, one) => {
        const mark = add(bar, "i", undefined, { title: one.name });
        mark.style.background = colour(one);
        mark.style.width = `calc((100% - ${room.toFixed(0)}px) * ${(one.values[at] / most).toFixed(5)})`;
      };
      if (spec.stack) {
        const bar = add(line, "div", undefined, { class: "bar" });
        for (const one of series) piece(bar, one);
        const said = series.map((one) => one.texts && one.texts[at]).filter(Boolean).pop();
        if (said) add(bar, "b", said);
      } else {
        for (const one of series) {
          const bar = add(line, "div", undefined, { class: "bar" });
          piece(bar, one);
          if (one.texts) add(bar, "b", one.texts[at]);
        }
      }
    });
    figure.drawn = series.map(({ name, values, colour: of }) => ({ name, x: values, colour: of }));
    return figure;
  }

  return { plot, bars };
})();
