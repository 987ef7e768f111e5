// `look()` returns what the tests ask about a page.
"use strict";
window.look = () => {
  const rgb = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((value) => (value <= 10.3148 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  // As WCAG 2.2 defines it.
  const contrast = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  function behind(element) {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return null;
  }
  const seen = (element) => element.getClientRects().length > 0;
  const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const named = (element) => `${element.tagName}.${element.getAttribute("class") || element.id}: ${element.textContent.slice(0, 40)}`;
  const texts = [...document.querySelectorAll("body *")].filter((element) => !["SCRIPT", "STYLE"].includes(element.tagName) && own(element) && seen(element));

  const contrasts = texts.map((element) => {
    const style = getComputedStyle(element);
    const colour = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
    return ["text", named(element), contrast(rgb(colour), behind(element))];
  });
  for (const element of document.querySelectorAll(".curve, .spot, .mark, .bars i")) {
    if (!seen(element)) continue;
    const style = getComputedStyle(element);
    const colour = element.tagName === "I" ? style.backgroundColor : element.matches(".spot") ? style.fill : style.stroke;
    contrasts.push(["drawing", named(element), contrast(rgb(colour), behind(element.tagName === "I" ? element.parentElement : element))]);
  }

  const wide = document.documentElement.clientWidth;
  // A table scrolls in its box, and a chart cuts off what is beyond its range.
  const within = (element) => (element.closest(".scroll") && !element.matches(".scroll")) || element.closest(".plot svg svg");
  const overflow = [...document.querySelectorAll("body *")].filter((element) => seen(element) && !within(element) && element.getBoundingClientRect().right > wide + 0.5).map(named);
  if (document.documentElement.scrollWidth > wide) overflow.push(`the page is ${document.documentElement.scrollWidth} wide, not ${wide}`);

  // Texts that are drawn: they may neither stand on each other nor leave the drawing.
  const overprints = [];
  let labels = 0;
  for (const figure of document.querySelectorAll("figure")) {
    const frame = figure.getBoundingClientRect();
    const boxes = texts.filter((element) => figure.contains(element)).flatMap((element) => {
      if (element.namespaceURI.endsWith("svg")) return [[element, element.getBoundingClientRect()]];
      // A text that wraps has a box in each line.
      const range = document.createRange();
      range.selectNodeContents(element);
      return [...range.getClientRects()].map((box) => [element, box]);
    });
    labels += boxes.length;
    boxes.forEach(([one, a], i) => {
      if (a.left < frame.left || a.right > frame.right || a.top < frame.top || a.bottom > frame.bottom) overprints.push(`${named(one)} leaves its figure`);
      for (const [other, b] of boxes.slice(i + 1)) {
        // A line box is higher than its letters.
        if (one.contains(other) || other.contains(one)) continue;
        if (a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 4 && b.top < a.bottom - 4) overprints.push(`${named(one)} on ${named(other)}`);
      }
    });
  }

  const drawn = {};
  const looks = {};
  const legends = {};
  const readouts = {};
  for (const figure of document.querySelectorAll("figure[id]")) {
    drawn[figure.id] = figure.drawn;
    legends[figure.id] = [...figure.querySelectorAll(".legend li")].map((entry) => [entry.textContent, entry.title]);
    looks[figure.id] = [...figure.querySelectorAll(".legend svg")].map((sample) => [...sample.children].map((part) => {
      const style = getComputedStyle(part);
      return [part.getAttribute("d"), style.fill, style.stroke, style.strokeDasharray].join(" ");
    }).join(" "));
    const chart = figure.querySelector(".plot > svg");
    if (!chart) continue;
    chart.dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
    chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    const readout = figure.querySelector(".readout");
    // A chart of nothing has nothing to say.
    readouts[figure.id] = readout ? [...readout.querySelectorAll("b, div")].map((line) => line.textContent) : [];
    const box = readout && readout.getBoundingClientRect();
    if (box && (box.right > wide || box.left < 0)) overflow.push(named(readout));
    chart.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    if (figure.querySelector(".readout, .reading")) overprints.push(`${figure.id}: Escape leaves the readout`);
  }
  const colours = {};
  for (const name of ["s1", "s2", "s3", "s4", "device", "host", "disk", "computed", "pinned", "promised", "lost", "down", "up"]) {
    const swatch = document.createElement("i");
    swatch.style.color = `var(--${name})`;
    document.body.append(swatch);
    colours[name] = rgb(getComputedStyle(swatch).color);
    swatch.remove();
  }
  return {
    title: document.title, dom: document.documentElement.outerHTML, ground: rgb(getComputedStyle(document.body).backgroundColor),
    width: wide, labels, contrasts, overflow, overprints, drawn, looks, legends, readouts, colours,
  };
};
