// What can be asked, from /openapi.json, as a page to read.

import { element } from "/page/draw.js";

const described = await (await fetch("/openapi.json")).json();
const schemas = described.components.schemas;

function follow(schema) {
  return schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema;
}

// A type in words: "text or list of text".
function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(typeOf).filter((one) => one !== "null").join(" or ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (schema.type === "array") return schema.prefixItems ? "list" : `list of ${typeOf(schema.items)}`;
  return schema.type ?? "";
}

function fields(schema) {
  const whole = follow(schema);
  const rows = Object.entries(whole?.properties ?? {}).map(([name, one]) => element("tr", {},
    element("td", {}, element("code", {}, name)),
    element("td", {}, typeOf(one) + (whole.required?.includes(name) ? "" : " (may be left out)")),
    element("td", {}, one.description ?? "")));
  return element("table", {}, element("tbody", {}, ...rows));
}

// "200 Classified · 400, 401, 404 ErrorAnswer".
function answers(responses) {
  const statuses = {};
  for (const [status, one] of Object.entries(responses)) {
    const type = typeOf(one.content?.["application/json"]?.schema) || one.description;
    (statuses[type] ??= []).push(status);
  }
  const made = Object.entries(statuses).map(([type, some]) => `${some.join(", ")} ${type}`);
  return element("p", { class: "soft" }, made.join(" · "));
}

function section(path, method, how) {
  const parts = [element("h3", {}, element("code", {}, `${method.toUpperCase()} ${path}`)),
                 element("p", {}, how.description ?? how.summary)];
  const sent = how.requestBody?.content["application/json"].schema;
  if (sent) parts.push(fields(sent));
  return element("section", { class: "path" }, ...parts, answers(how.responses));
}

const sections = Object.entries(described.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, how]) => section(path, method, how)));
const named = ["Classified", "Tagged", "TaggedSpan", "SpanAnswer", "AnswerCandidate", "Chosen", "FillAnswer",
               "FillGuess", "AttentionAnswer", "EmbeddingsAnswer", "ErrorDetail"];
const types = named.filter((name) => name in schemas).map((name) =>
  element("section", { class: "path" }, element("h3", {}, name),
    element("p", {}, schemas[name].description ?? ""), fields(schemas[name])));
document.getElementById("paths").append(
  element("p", {}, described.info.summary), element("h2", {}, "Paths"), ...sections,
  element("h2", {}, "Types"), ...types);
