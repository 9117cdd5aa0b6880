// The parameters of a chat: read into a request, and disabled, with the reason, where the chosen models do not take them.
import { t } from "./language.js";
import { findFacts, setReason, showReason } from "./model_facts.js";

const NUMBERS = ["temperature", "max_tokens", "top_p", "seed", "presence_penalty", "frequency_penalty"];
const IGNORABLE = ["temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stop", "reasoning_effort"];
const known = new Map(); // by the name of a model: what findFacts has found
let latestNames = null; // what showParameters was last called with

// A mistake in a field; `param` is the name of the field.
export class WrongField extends Error {
  constructor(param, message) {
    super(message);
    this.param = param;
  }
}

function readJson(form, name, isRight, message) {
  const field = form.elements[name];
  const text = field.disabled ? "" : field.value.trim();
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

// The fields of a request but model and messages. Throws a WrongField.
export function readParameters(form) {
  const fields = {};
  for (const name of NUMBERS) {
    const { value, disabled } = form.elements[name];
    if (value !== "" && !disabled) fields[name] = Number(value);
  }
  const stops = form.elements.stop.value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (stops.length && !form.elements.stop.disabled) fields.stop = stops;
  const effort = readEffort(form);
  if (effort) fields.reasoning_effort = effort;
  const tools = readJson(form, "tools", Array.isArray, t("The tools must be an array: [{\"type\": \"function\", …}]"));
  if (tools?.length) fields.tools = tools;
  const format = form.elements.response_format.value;
  if (format === "json_object") fields.response_format = { type: "json_object" };
  if (format === "json_schema") {
    const schema = readJson(form, "json_schema", isObject, t("The schema must be an object: {\"type\": \"object\", …}"));
    if (!schema) throw new WrongField("json_schema", t("Enter a JSON schema"));
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  }
  return { ...fields, ...readJson(form, "other", isObject, t("“Other fields” must be an object: {\"top_k\": 40}")) };
}

function readEffort(form) {
  const { value, disabled } = form.elements.reasoning_effort;
  return disabled ? "" : value;
}

// What of `fields` is sent to a model beside others: nothing that it is known to lack.
export function fitParameters(fields, name) {
  const facts = known.get(name);
  const { tools, response_format: format, reasoning_effort: effort, ...rest } = fields;
  return {
    ...rest,
    ...(effort && !lacks(facts, "reasoning") ? { reasoning_effort: effort } : {}),
    ...(tools && !lacks(facts, "tools") ? { tools } : {}),
    ...(format && !(format.type === "json_schema" && lacks(facts, "structured_output")) ? { response_format: format } : {}),
  };
}

// A model that does not say what it can counts as able.
const lacks = (facts, feature) => Boolean(facts?.features && !facts.features.includes(feature));

function ignores(facts, name, effort) {
  const { ignored_parameters: always = [], ignored_while_reasoning: reasoning = [] } = facts?.options ?? {};
  return always.includes(name) || (Boolean(effort) && effort !== "none" && reasoning.includes(name));
}

// What files a model cannot read: "image", "audio" or "file", a PDF. Whoever reads images reads PDFs, too.
function listUnread(facts) {
  const read = facts?.input_modalities;
  if (!read) return [];
  return ["image", "audio", "file"].filter((kind) => !read.includes(kind) && !(kind === "file" && read.includes("image")));
}

// The kinds of files that none of the chosen models reads.
export function listUnreadable(models) {
  const [first = [], ...others] = models.map((name) => listUnread(known.get(name)));
  return first.filter((kind) => others.every((kinds) => kinds.includes(kind)));
}

// Disables `field` if all models are among `names`, and says why; says of some of them that theirs does not count.
function tell(field, names, models, reason) {
  const text = names.length ? reason(names.join(", ")) : "";
  if (names.length === models.length) setReason(field, text);
  else {
    field.disabled = false;
    showReason(field, text);
  }
}

function tellFeatures(form, models) {
  const listLacking = (feature) => models.filter((name) => lacks(known.get(name), feature));
  const { reasoning_effort: effort, tools, response_format: format } = form.elements;
  const unable = listLacking("reasoning");
  const deaf = models.filter((name) => !unable.includes(name) && ignores(known.get(name), "reasoning_effort", ""));
  tell(effort, [...unable, ...deaf], models, (names) => (unable.length
    ? t("Not sent to {models}: reasoning not supported.", { models: names })
    : t("Not used by {models}.", { models: names })));
  tell(tools, listLacking("tools"), models, (names) => t("Not sent to {models}: tools not supported.", { models: names }));
  const plain = listLacking("structured_output");
  const schema = [...format.options].find((option) => option.value === "json_schema");
  schema.disabled = plain.length === models.length;
  if (schema.disabled && schema.selected) {
    format.value = "";
    format.dispatchEvent(new Event("change"));
  }
  showReason(format, plain.length ? t("{models} cannot follow a JSON schema.", { models: plain.join(", ") }) : "");
}

// Tells of each parameter which of the models do not take it, and the bounds that they have.
export async function showParameters(form, names) {
  latestNames = names;
  const models = [...new Set(names.filter(Boolean))];
  const found = await Promise.all(models.map(findFacts));
  models.forEach((name, index) => known.set(name, found[index]));
  if (names !== latestNames) return; // other models were chosen meanwhile
  tellFeatures(form, models);
  const effort = readEffort(form);
  for (const name of IGNORABLE.filter((one) => one !== "reasoning_effort")) {
    const deaf = models.filter((model) => ignores(known.get(model), name, effort));
    const always = deaf.filter((model) => ignores(known.get(model), name, ""));
    tell(form.elements[name], deaf, models, (those) => (always.length === deaf.length
      ? t("Not used by {models}.", { models: those })
      : t("Not used by {models} when reasoning is on.", { models: those })));
  }
  const bounds = found.map((one) => one?.max_output_tokens).filter(Boolean);
  form.elements.max_tokens.placeholder = bounds.length ? t("at most {count}", { count: Math.min(...bounds) }) : t("model default");
  const blind = models.filter((name) => listUnread(known.get(name)).includes("image"));
  const hint = form.querySelector("[data-blind]");
  hint.textContent = blind.length ? t("{models} cannot read images", { models: blind.join(", ") }) : "";
  hint.hidden = blind.length === 0;
}
