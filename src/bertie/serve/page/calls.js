// Requests to the server, and the same as people would write them elsewhere.

export class Trouble extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem("bertie-key") || "",
  set: (value) => sessionStorage.setItem("bertie-key", value),
};

export async function ask(path, body) {
  const headers = { "content-type": "application/json" };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
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
