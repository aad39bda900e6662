// Requests to the server, and the same as people would write them elsewhere.

export class Trouble extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// A browser that blocks cookies throws at the very name of a storage: then it is kept in the page.
const kept = {};

export function recall(storage, name) {
  try {
    return window[storage].getItem(name) ?? kept[name] ?? "";
  } catch {
    return kept[name] ?? "";
  }
}

export function remember(storage, name, value) {
  kept[name] = value;
  try {
    window[storage].setItem(name, value);
  } catch { /* it is in the page */ }
}

export const key = {
  get: () => recall("sessionStorage", "bertie-key"),
  set: (value) => remember("sessionStorage", "bertie-key", value),
};

// The bytes of a text as a header may hold them: fetch takes no letter beyond Latin-1.
const asBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

export async function ask(path, body) {
  const headers = { "content-type": "application/json" };
  if (key.get()) headers.authorization = `Bearer ${asBytes(key.get())}`;
  const how = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  let response, answer;
  try {
    response = await fetch(path, how);
    answer = await response.json();
  } catch {
    throw new Trouble(response ? response.status : 0, "");
  }
  if (!response.ok) throw new Trouble(response.status, answer?.error?.message ?? "");
  return answer;
}

export function curl(path, body) {
  const text = JSON.stringify(body).replaceAll("'", `'\\''`);
  const lock = key.get() ? `  -H "authorization: Bearer $BERTIE_KEY" \\\n` : "";
  return `curl ${location.origin}${path} \\\n  -H 'content-type: application/json' \\\n${lock}  -d '${text}'`;
}

export function python(path, body) {
  const lock = key.get() ? `, "authorization": "Bearer " + os.environ["BERTIE_KEY"]` : "";
  return [
    `import json${key.get() ? ", os" : ""}`,
    "from urllib.request import Request, urlopen",
    "",
    `body = ${literal(body)}`,
    `headers = {"content-type": "application/json"${lock}}`,
    `request = Request("${location.origin}${path}", json.dumps(body).encode(), headers)`,
    "print(json.load(urlopen(request)))",
  ].join("\n");
}

// JSON's texts, numbers and lists are Python's, too.
function literal(value) {
  return JSON.stringify(value)
    .replace(/("(?:[^"\\]|\\.)*")|\b(true|false|null)\b/g, (found, text, word) =>
      text ?? { true: "True", false: "False", null: "None" }[word]);
}
