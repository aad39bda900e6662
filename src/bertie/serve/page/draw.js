// Answers as elements. Texts go in as text, never as markup.

export function element(tag, settings = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const percent = (share) => `${(share * 100).toFixed(share > 0.0995 || share < 0.0005 ? 1 : 2)}%`;

// Rows are [name, share of 1, words for the number]; the best is the first of `best`.
export function bars(caption, rows, { best = 0, names = "", numbers = "" } = {}) {
  const body = element("tbody");
  rows.forEach(([name, share, shown], number) => {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    body.append(element("tr", { class: number === best ? "best" : "" },
      element("th", { scope: "row" }, name),
      element("td", { class: "track", "aria-hidden": "true" }, bar),
      element("td", { class: "number" }, shown ?? percent(share))));
  });
  return element("table", { class: "bars" }, element("caption", {}, caption), body);
}

// The places that the server gives count characters, as Python does, not JavaScript's halves.
export function marked(text, spans) {
  const characters = Array.from(text);
  const passage = element("p", { class: "passage" });
  let done = 0;
  for (const { start, end, kind, note } of [...spans].sort((a, b) => a.start - b.start)) {
    passage.append(characters.slice(done, start).join(""));
    const mark = element("mark", { class: kind ?? "" }, characters.slice(start, end).join(""));
    if (note) mark.append(element("small", {}, note));
    passage.append(mark);
    done = end;
  }
  passage.append(characters.slice(done).join(""));
  return passage;
}

export function heatMap(caption, texts, matrix) {
  const others = matrix.flatMap((row, i) => row.filter((_, j) => i !== j));
  const low = Math.min(...others), high = Math.max(...others, low + 1e-6);
  const head = element("tr", {}, element("td"), ...texts.map((text, number) =>
    element("th", { scope: "col", title: text }, String(number + 1))));
  const rows = matrix.map((row, i) => element("tr", {},
    element("th", { scope: "row" }, element("span", {}, `${i + 1}. ${texts[i]}`)),
    ...row.map((value, j) => {
      const share = i === j ? 1 : (value - low) / (high - low);
      const cell = element("td", {}, value.toFixed(2));
      cell.style.background = `color-mix(in oklab, var(--bar) ${Math.round(share * 100)}%, var(--paper))`;
      return cell;
    })));
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { class: "heat" }, element("caption", {}, caption),
      element("thead", {}, head), element("tbody", {}, ...rows)));
}

// Pieces to point at; `weights` are of one head, from each piece to each; the piece that is pointed
// at is kept in `looking.from`.
export function pieces(words, tokens, weights, looking) {
  const told = element("p", { role: "status" }, words.looks);
  const show = (from) => {
    looking.from = from;
    const most = Math.max(...weights[from]);
    buttons.forEach((button, to) => {
      button.setAttribute("aria-pressed", String(to === from));
      const share = Math.round((weights[from][to] / most) * 100);
      button.style.background = `color-mix(in oklab, var(--bar) ${share}%, var(--paper))`;
      button.title = percent(weights[from][to]);
    });
    const ranked = weights[from].map((weight, to) => [weight, tokens[to]]).sort((a, b) => b[0] - a[0]);
    const listed = ranked.slice(0, 5).map(([weight, token]) => `${token} ${percent(weight)}`);
    told.textContent = `${tokens[from]} ${words.looksAt}: ${listed.join(", ")}`;
  };
  const buttons = tokens.map((token, number) => element("button", {
    type: "button", "aria-pressed": "false", onmouseenter: () => show(number),
    onfocus: () => show(number), onclick: () => show(number),
  }, token));
  if (looking.from !== null) show(looking.from);
  return element("div", {}, element("div", { class: "pieces" }, ...buttons), told);
}
