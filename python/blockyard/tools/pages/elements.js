// What pages are built of. Text is inserted as text, never as markup.
//
//   elements.data()                              the page's JSON
//   elements.at(id)                              the element of that id
//   elements.add(parent, tag, text, attributes)  a new element; text and attributes may be left out
//   elements.answer(parent, sentences)           the answer: the first sentence is the largest
//   elements.tile(parent, { name, how, value, text, more, key })
//       a headline figure: `text` is what is read of `value`, and `key` where it stands in the JSON
//   elements.table(parent, { head, rows })       `head`: texts, or { text, full } with a longer name;
//       `rows`: arrays of texts, the first being the row's name; null is a dash; a row of one text
//       is a heading. The table scrolls in a box of its own, so the page stays as wide as it is
//   elements.pairs(parent, caption, entries)     a table of names and values
const elements = (() => {
  const at = (id) => document.getElementById(id);
  const data = () => JSON.parse(at("result").textContent);

  function add(parent, tag, text, attributes) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    parent.append(element);
    return element;
  }

  function answer(parent, sentences) {
    parent.classList.add("answer");
    parent.hidden = !sentences.length;
    for (const sentence of sentences) add(parent, "p", sentence);
  }

  function tile(parent, { name, how, value, text, more, key }) {
    const box = add(parent, "div", undefined, { class: "tile" });
    const heading = add(box, "h3", name);
    if (how) add(heading, "em", how);
    add(box, "div", text, { class: "value", "data-key": key, "data-value": value });
    if (more) add(box, "div", more, { class: "more" });
  }

  function table(parent, { head, rows }) {
    // What scrolls can be reached by the keyboard.
    const box = add(parent, "div", undefined, { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" });
    const whole = add(box, "table");
    const heading = add(add(whole, "thead"), "tr");
    head.forEach((name) => {
      const cell = add(heading, "th", name.text ?? name, { scope: "col" });
      if (name.full) cell.title = name.full;
    });
    const body = add(whole, "tbody");
    for (const [name, ...values] of rows) {
      if (!values.length) {
        // The heading stays in view while the columns scroll under it.
        add(add(add(body, "tr", undefined, { class: "part" }), "th", undefined, { colspan: head.length }), "span", name);
        continue;
      }
      const row = add(body, "tr");
      add(row, "th", name, { scope: "row" });
      for (const value of values) add(row, "td", value ?? "–");
    }
    return whole;
  }

  function pairs(parent, caption, entries) {
    const whole = add(parent, "table", undefined, { class: "pairs" });
    add(whole, "caption", caption);
    const body = add(whole, "tbody");
    for (const [name, value] of entries) {
      const row = add(body, "tr");
      add(row, "th", name, { scope: "row" });
      add(row, "td", value);
    }
    return whole;
  }

  return { at, data, add, answer, tile, table, pairs };
})();
