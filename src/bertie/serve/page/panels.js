// The panels: what each asks for, what it sends, and how it shows the answer.

import { bars, element, heatMap, marked, pieces } from "/page/draw.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const ranked = (scores) => Object.entries(scores).sort((a, b) => b[1] - a[1]);

// The head and the piece that are looked at stay while layers, heads and texts change.
const looking = { head: "", from: null, tokens: "" };

// A field: name, word of its label, rows; `body` makes what is sent of the fields' texts.
export const PANELS = {
  fill: {
    fields: () => [{ name: "text", word: "text", rows: 3, hasMask: true }],
    body: ({ text }) => ({ texts: text, top: 5 }),
    draw(answer, words) {
      const guesses = answer.masks.map((mask, number) =>
        bars(`${words.mask} ${number + 1}`, mask.map(({ piece, probability }) => [piece, probability])));
      return [element("h2", {}, words.best), element("p", { class: "passage" }, answer.best), ...guesses];
    },
  },
  classify: {
    fields: (model) => model.pairs === false
      ? [{ name: "text", word: "text", rows: 3 }]
      : [{ name: "text", word: "first", rows: 2 },
         { name: "second", word: model.pairs ? "second" : "maybeSecond", rows: 2, isOptional: true }],
    example: (model) => (model.pairs ? "pairs" : "classify"),
    body: ({ text, second }, model) => model.pairs || (model.pairs === null && second)
      ? { pairs: [text, second] } : { texts: text },
    draw(answer, words, model) {
      if (model.kind === "regression") {
        return [element("h2", {}, words.number), element("p", { class: "passage" }, answer.label.toFixed(3))];
      }
      const chosen = Array.isArray(answer.label) ? answer.label : [answer.label];
      return [element("h2", {}, `${words.label}: ${chosen.join(", ") || words.none}`),
              bars(words.probability, ranked(answer.scores))];
    },
  },
  tag: {
    fields: () => [{ name: "text", word: "text", rows: 4 }],
    body: ({ text }) => ({ texts: text }),
    draw(answer, words, model) {
      const isSpans = model.kind === "spans";
      const found = isSpans ? answer.spans : answer.words.map((word) => ({ ...word, label: word.tag }));
      const kinds = [...new Set(isSpans ? model.labels.map((label) => label.slice(2)) : model.labels)];
      const spans = found.map((one) => ({ ...one, note: one.label, kind: `c${kinds.indexOf(one.label) % 6}` }));
      if (!found.length) return [marked(answer.text, []), element("p", {}, words.nothingFound)];
      return [marked(answer.text, spans),
              bars(`${words.found}, ${words.probability}`,
                   found.map((one) => [`${one.text} (${one.label})`, one.score]), { best: -1 })];
    },
  },
  answer: {
    fields: () => [{ name: "question", word: "question", rows: 1 }, { name: "context", word: "context", rows: 6 }],
    body: ({ question, context }) => ({ question, context }),
    draw(answer, words, model, sent) {
      const isNone = answer.text === "";
      const rows = answer.candidates.slice(0, 5).map((one) => [one.text, one.probability]);
      if (isNone) rows.unshift([words.noAnswer, answer.probability]);
      return [element("h2", {}, isNone ? words.noAnswer : answer.text),
              marked(sent.context, isNone ? [] : [answer]),
              bars(`${words.others}, ${words.probability}`, rows)];
    },
  },
  choose: {
    fields: () => [{ name: "prompt", word: "prompt", rows: 2 }, { name: "options", word: "options", rows: 4 }],
    body: ({ prompt, options }) => ({ prompt, options: lines(options) }),
    draw(answer, words, model, sent) {
      const rows = answer.scores.map((score, number) => [sent.options[number], score]);
      return [bars(`${words.rank}, ${words.probability}`, rows.sort((a, b) => b[1] - a[1]))];
    },
  },
  similarity: {
    fields: () => [{ name: "texts", word: "texts", rows: 5 }],
    body: ({ texts }) => ({ texts: lines(texts) }),
    draw: (answer, words, model, sent) => [heatMap(words.cosines, sent.texts, answer)],
  },
  attention: {
    fields: () => [{ name: "text", word: "text", rows: 2 }],
    choices: (model, words) => [{
      name: "layer", word: "layer", value: model.num_layers,
      options: Array.from({ length: model.num_layers }, (_, n) => [n + 1, String(n + 1)]),
    }],
    body: ({ text, layer }) => ({ text, layer: Number(layer) }),
    draw(answer, words) {
      const mean = answer.tokens.map((_, from) => answer.tokens.map((__, to) =>
        answer.heads.reduce((sum, head) => sum + head[from][to], 0) / answer.heads.length));
      const tokens = JSON.stringify(answer.tokens);
      if (tokens !== looking.tokens) Object.assign(looking, { tokens, from: null });
      if (Number(looking.head) >= answer.heads.length) looking.head = ""; // another model's
      const place = element("div");
      const show = () => {
        looking.head = heads.value;
        const weights = looking.head === "" ? mean : answer.heads[Number(looking.head)];
        place.replaceChildren(pieces(words, answer.tokens, weights, looking));
      };
      const heads = element("select", { id: "head", onchange: show },
        element("option", { value: "" }, words.meanHead),
        ...answer.heads.map((_, n) => element("option", { value: n }, String(n + 1))));
      heads.value = looking.head;
      show();
      return [element("p", { class: "choose" }, element("label", { for: "head" }, words.head), heads), place];
    },
  },
};
