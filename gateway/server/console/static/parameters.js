// The parameters of a chat: read into a request, and shown only where the model is not known to lack them.
import { call } from "./api.js";
import { t } from "./language.js";

const NUMBERS = ["temperature", "max_tokens", "top_p", "seed", "presence_penalty", "frequency_penalty"];
const facts = new Map(); // by the name of a model: a promise of its description, or null

// A mistake in a field; `param` is the name of the field.
export class WrongField extends Error {
  constructor(param, message) {
    super(message);
    this.param = param;
  }
}

function readJson(form, name, isRight, message) {
  const text = form.elements[name].value.trim();
  if (!text) return null;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new WrongField(name, t("This is not valid JSON: {reason}", { reason: error.message }));
  }
  if (!isRight(value)) throw new WrongField(name, message);
  return value;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function isShown(field) {
  return !field.closest("[data-feature][hidden]");
}

// The fields of a request but model and messages. Throws a WrongField.
export function readParameters(form) {
  const fields = {};
  for (const name of NUMBERS) {
    const { value } = form.elements[name];
    if (value !== "") fields[name] = Number(value);
  }
  const stops = form.elements.stop.value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (stops.length) fields.stop = stops;
  const effort = form.elements.reasoning_effort;
  if (effort.value && isShown(effort)) fields.reasoning_effort = effort.value;
  const tools = isShown(form.elements.tools)
    && readJson(form, "tools", Array.isArray, t("The tools must be a list: [{\"type\": \"function\", …}]"));
  if (tools?.length) fields.tools = tools;
  const format = form.elements.response_format;
  if (format.value === "json_object") fields.response_format = { type: "json_object" };
  if (format.value === "json_schema" && isShown(format)) {
    const schema = readJson(form, "json_schema", isObject, t("The schema must be an object: {\"type\": \"object\", …}"));
    if (!schema) throw new WrongField("json_schema", t("Enter a JSON schema"));
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  }
  return { ...fields, ...readJson(form, "other", isObject, t("“Other fields” must be an object: {\"top_k\": 40}")) };
}

// The model's description in the admin API; null if it has none.
function findFacts(name) {
  if (!facts.has(name)) {
    facts.set(name, call("GET", `/admin/v1/models?search=${encodeURIComponent(name)}&limit=1000`)
      .then(({ data }) => data.find((one) => one.id === name) ?? null, () => null));
  }
  return facts.get(name);
}

// Hides what none of the chosen models has, and tells the bounds that they have. A model that does not say counts as able.
export async function showParameters(form, models) {
  const known = await Promise.all(models.filter(Boolean).map(findFacts));
  const lacks = (feature) => known.length > 0 && known.every((one) => one?.features && !one.features.includes(feature));
  for (const place of form.querySelectorAll("[data-feature]")) place.hidden = lacks(place.dataset.feature);
  const bounds = known.map((one) => one?.max_output_tokens).filter(Boolean);
  const field = form.elements.max_tokens;
  field.placeholder = bounds.length ? t("at most {count}", { count: Math.min(...bounds) }) : t("model default");
  const blind = known.filter((one) => one?.input_modalities && !one.input_modalities.includes("image")).map((one) => one.id);
  const hint = form.querySelector("[data-blind]");
  hint.textContent = blind.length ? t("{models} cannot read images", { models: blind.join(", ") }) : "";
  hint.hidden = blind.length === 0;
}
