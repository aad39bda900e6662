// Puts the page together: models, languages, tabs, and the panel that is open.

import { Trouble, ask, curl, key, python, recall, remember } from "/page/calls.js";
import { element } from "/page/draw.js";
import { PANELS } from "/page/panels.js";
import { EXAMPLES, WORDS } from "/page/words.js";

const find = (id) => document.getElementById(id);
// What a model reads decides in which language it is asked, not what the page is written in.
const LANGUAGES = { latin: "en", han: "zh" };
// `asked` counts questions and panels: an answer that comes when it has moved on is for nobody.
const state = { models: [], model: null, verb: "", language: "en", asked: 0 };
const trouble = find("trouble"); // stands below the form once there is one
const words = () => WORDS[state.language];

// A sentence in the page's language; below it what the server said, which is English.
function tell(sentence, detail = "") {
  const small = detail ? [element("p", { class: "detail", lang: "en" }, detail)] : [];
  trouble.replaceChildren(element("p", {}, sentence), ...small);
}

function showTrouble(error) {
  if (!(error instanceof Trouble)) throw error;
  if (error.status !== 401) {
    tell(words()[`s${error.status}`] ?? words().unknown, error.message);
    return;
  }
  tell(key.get() ? words().wrongKey : words().s401); // the detail is for programs: a header
  find("key-form").hidden = false;
  find("key").focus();
}

// The page around the panel.

function showWords() {
  document.documentElement.lang = state.language;
  for (const one of document.querySelectorAll("[data-word]")) one.textContent = words()[one.dataset.word];
  find("tabs").setAttribute("aria-label", words().tabs);
}

function showModels() {
  find("model").replaceChildren(...state.models.map((model) => element("option", { value: model.id }, model.id)));
  if (state.model) find("model").value = state.model.id;
}

function showAbout() {
  const { max_length, num_layers, num_heads, hidden_size, kind, labels } = state.model;
  const parts = [`${num_layers} ${words().layers} × ${hidden_size}`, `${num_heads} ${words().heads}`,
                 `${max_length} ${words().tokens} (${words().windows})`];
  const names = [...new Set(kind === "spans" ? labels.slice(1).map((label) => label.slice(2)) : labels)];
  if (names.length) parts.push(`${words().labels}: ${names.slice(0, 12).join(", ")}`);
  find("about").textContent = parts.join(" · ");
}

function showTabs() {
  const verbs = state.model.verbs.filter((verb) => verb in PANELS);
  if (!verbs.includes(state.verb)) state.verb = verbs[0];
  find("tabs").replaceChildren(...verbs.map((verb) => element("button", {
    role: "tab", type: "button", id: `tab-${verb}`, "aria-controls": "panel",
    "aria-selected": String(verb === state.verb), tabindex: verb === state.verb ? "0" : "-1",
    onclick: () => open(verb), onkeydown: (event) => step(event, verbs),
  }, words()[verb])));
  find("panel").setAttribute("aria-labelledby", `tab-${state.verb}`);
}

function step(event, verbs) {
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!move) return;
  event.preventDefault();
  open(verbs[(verbs.indexOf(state.verb) + move + verbs.length) % verbs.length]);
  find(`tab-${state.verb}`).focus();
}

function open(verb) {
  state.verb = verb;
  showTabs();
  showPanel();
}

// The panel.

function showPanel() {
  const panel = PANELS[state.verb];
  const example = EXAMPLES[exampleLanguage()][panel.example?.(state.model) ?? state.verb];
  const fields = panel.fields(state.model);
  const inputs = fields.map((field) => makeField(field, example[field.name]));
  const masks = fields.filter((field) => field.hasMask).map((field) => makeMaskButton(field.name));
  const choices = (panel.choices?.(state.model, words()) ?? []).map(makeChoice);
  const result = element("div", { class: "result", id: "result", "aria-live": "polite" });
  const calls = element("div", { id: "calls" });
  const button = element("button", { class: "main", id: "run" }, words().run);
  const read = () => Object.fromEntries(
    [...find("panel").querySelectorAll("[data-field]")].map((one) => [one.dataset.field, one.value]));
  const refresh = () => showCalls(calls, panel.body(read(), state.model));
  const form = element("form", {
    oninput: refresh,
    onsubmit: (event) => {
      event.preventDefault();
      const blank = fields.find(({ name, isOptional }) => !isOptional && !read()[name].trim());
      if (blank) askToWrite(blank, result);
      else run(panel, read(), button, result);
    },
    onkeydown: (event) => { if (event.key === "Enter" && event.ctrlKey) form.requestSubmit(); },
    onchange: (event) => {
      refresh();
      if (event.target.tagName === "SELECT" && result.childElementCount) form.requestSubmit();
    },
  }, ...inputs.flat(), element("div", { class: "actions" }, button, ...masks, ...choices.flat()));
  state.asked += 1;
  trouble.replaceChildren();
  find("panel").replaceChildren(form, trouble, result,
    element("details", { open: "" }, element("summary", {}, words().code), calls));
  refresh();
}

function exampleLanguage() {
  const read = state.model.scripts.map((script) => LANGUAGES[script]);
  return read.length && !read.includes(state.language) ? read[0] : state.language;
}

function askToWrite({ name, word }, result) {
  state.asked += 1;
  result.replaceChildren();
  tell(words().blank.replace("{}", words()[word]));
  find(`field-${name}`).focus();
}

function makeField({ name, word, rows, hasMask, isOptional }, example) {
  const area = element("textarea", {
    id: `field-${name}`, "data-field": name, rows, spellcheck: "false",
    required: isOptional ? null : "",
  }, hasMask ? example.replaceAll("[MASK]", state.model.mask_token) : example);
  return [element("label", { for: `field-${name}` }, words()[word]), area];
}

function makeMaskButton(name) {
  const add = () => {
    const area = find(`field-${name}`);
    area.setRangeText(state.model.mask_token, area.selectionStart, area.selectionEnd, "end");
    area.focus();
    area.dispatchEvent(new Event("input", { bubbles: true }));
  };
  return element("button", { type: "button", id: "add-mask", onclick: add }, words().addMask);
}

function makeChoice({ name, word, value, options }) {
  const select = element("select", { id: `field-${name}`, "data-field": name },
    ...options.map(([one, shown]) => element("option", { value: one }, shown)));
  select.value = value;
  return [element("label", { for: `field-${name}` }, words()[word]), select];
}

async function run(panel, fields, button, result) {
  const { model, verb } = state;
  const body = panel.body(fields, model);
  const number = state.asked += 1;
  const isAwaited = () => state.asked === number;
  button.setAttribute("aria-busy", "true");
  button.textContent = words().asking;
  trouble.replaceChildren();
  try {
    const answer = await ask(`/v1/${model.id}/${verb}`, body);
    if (isAwaited()) result.replaceChildren(...panel.draw(answer, words(), model, body));
  } catch (error) {
    if (!isAwaited()) return;
    result.replaceChildren();
    showTrouble(error);
  } finally {
    if (isAwaited()) {
      button.removeAttribute("aria-busy");
      button.textContent = words().run;
    }
  }
}

function showCalls(place, body) {
  const path = `/v1/${state.model.id}/${state.verb}`;
  const written = { curl: curl(path, body), Python: python(path, body) };
  place.replaceChildren(...Object.entries(written).flatMap(([name, text]) => {
    const code = element("code", {}, text);
    const button = element("button", { type: "button", onclick: async () => show(await copy(text, code)) });
    const show = (word) => {
      button.textContent = word;
      button.setAttribute("aria-label", `${word}: ${name}`);
    };
    show(words().copy);
    return [element("div", { class: "code-head" }, element("strong", {}, name), button),
            element("pre", { id: `call-${name.toLowerCase()}`, tabindex: "0" }, code)];
  }));
}

// Browsers lend no clipboard to plain http from another machine. Then the text is selected and
// copied as was usual before; where that fails, too, it is left selected.
async function copy(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    return words().copied;
  } catch {
    getSelection().selectAllChildren(code);
    return document.execCommand("copy") ? words().copied : words().selected;
  }
}

// The beginning.

function showAll() {
  showWords();
  if (!state.model) return;
  showModels();
  showAbout();
  showTabs();
  showPanel();
}

async function load() {
  try {
    state.models = (await ask("/v1/models")).data;
    state.model = state.models[0];
    find("key-form").hidden = true;
    trouble.replaceChildren();
    showAll();
  } catch (error) {
    showTrouble(error);
  }
}

find("model").addEventListener("change", (event) => {
  state.model = state.models.find((model) => model.id === event.target.value);
  showAll();
});
find("language").addEventListener("change", (event) => {
  state.language = event.target.value;
  remember("localStorage", "bertie-language", state.language);
  showAll();
  if (!state.model) load(); // what keeps it from being shown is told in the new language
});
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(find("key").value.trim());
  load();
});

const stored = recall("localStorage", "bertie-language"); // by whatever page was at this address
const usual = navigator.language.startsWith("zh") ? "zh" : "en";
state.language = Object.hasOwn(WORDS, stored) ? stored : usual;
find("language").value = state.language;
showWords();
load();
