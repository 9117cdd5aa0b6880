// A new channel: a provider is chosen, its key is tested when it is pasted or left, and its models are there to tick.
//
// The test is POST /admin/v1/channels/check, which lists the provider's models and stores nothing. A key is sent when it
// was pasted or its field was left, never while it is typed, and one test at most is started a second.
import "./aliases.js";
import { at, call } from "./api.js";
import { readForm, showFault } from "./forms.js";
import { n, t } from "./language.js";

const MIN_PAUSE_MS = 1000;
const choose = document.getElementById("choose");
const form = document.getElementById("new-channel");
const { providers, names } = JSON.parse(form.dataset.providers);
const find = document.getElementById("find");
const word = document.getElementById("check");
const ticks = form.querySelector(".ticks");
const models = document.getElementById("models");
const typed = document.getElementById("ch-models");
const key = document.getElementById("ch-key");
const address = form.querySelector("[data-address]");
const url = document.getElementById("ch-url");
let chosen = null;

// The provider

const tiles = [...choose.querySelectorAll("[data-provider]")];
function isMatch(tile) {
  const { title, base_url: base } = providers[tile.dataset.provider];
  const text = `${tile.textContent} ${tile.dataset.provider} ${title} ${base ?? ""}`.toLowerCase();
  return find.value.toLowerCase().split(/\s+/).every((part) => text.includes(part));
}

find.addEventListener("input", () => {
  for (const tile of tiles) tile.hidden = !isMatch(tile);
  for (const group of choose.querySelectorAll("[data-group]")) {
    group.hidden = ![...group.querySelectorAll("[data-provider]")].some((tile) => !tile.hidden);
  }
  choose.querySelector("[data-none]").hidden = tiles.some((tile) => !tile.hidden);
});

find.addEventListener("keydown", (event) => {
  if (event.key === "/" && !find.value) event.preventDefault(); // the key that leads here is no text
});

document.getElementById("find-provider").addEventListener("submit", (event) => {
  event.preventDefault();
  tiles.find((tile) => !tile.hidden)?.click();
});

choose.addEventListener("click", (event) => {
  const tile = event.target.closest("[data-provider]");
  if (!tile) return;
  history.pushState(null, "", `?provider=${tile.dataset.provider}`); // Back leads to the providers
  openNamed();
});

form.querySelector("[data-back]").addEventListener("click", () => {
  history.pushState(null, "", location.pathname);
  openNamed();
});

function openNamed() {
  const slug = new URLSearchParams(location.search).get("provider") ?? "";
  if (Object.hasOwn(providers, slug)) {
    openForm(slug);
    return;
  }
  form.hidden = true;
  choose.hidden = false;
  find.focus();
}
addEventListener("popstate", openNamed);

function findName(slug) {
  let number = 1;
  while (names.includes(number === 1 ? slug : `${slug}-${number}`)) number += 1;
  return number === 1 ? slug : `${slug}-${number}`;
}

function openForm(slug) {
  const isSame = chosen?.slug === slug; // Forward leads back to what was written
  chosen = { slug, ...providers[slug] };
  if (!isSame) fillForm(slug);
  choose.hidden = true;
  form.hidden = false;
  (form.querySelector("[data-needed] input:required") ?? key).focus();
  startCheck();
}

function fillForm(slug) {
  form.reset();
  forgetCheck();
  form.elements.provider.value = slug;
  form.elements.name.value = findName(slug);
  form.querySelector("[data-title]").textContent = chosen.title;
  form.querySelector("#ch-key-hint").textContent = chosen.key_hint;
  form.querySelector("[data-key] [data-optional]").hidden = chosen.needs_key;
  key.required = chosen.needs_key;
  const asked = !chosen.base_url && !chosen.address;
  url.required = asked;
  url.placeholder = chosen.base_url || "https://…/v1";
  address.querySelector("[data-optional]").hidden = asked;
  address.querySelector("[data-address-hint]").textContent = asked ? "" : t("Blank: {address}", { address: chosen.base_url || chosen.address });
  const needed = form.querySelector("[data-needed]");
  for (const part of needed.querySelectorAll("[data-part]:not([hidden])")) part.remove();
  for (const part of chosen.parts) needed.insertBefore(makePart(part), form.querySelector("[data-key]"));
  if (asked) needed.prepend(address);
  else form.querySelector("details > .fields").insertBefore(address, form.querySelector("#ch-check").closest(".field"));
  form.querySelector("[data-typed]").hidden = chosen.lists_models;
}

function makePart({ name, label, example }) {
  const field = form.querySelector("[data-part][hidden]").cloneNode();
  const input = Object.assign(document.createElement("input"), { id: `part-${name}`, required: true, placeholder: example });
  input.dataset.partName = name;
  input.autocapitalize = "none";
  field.hidden = false;
  field.append(Object.assign(document.createElement("label"), { htmlFor: input.id, textContent: label }), input);
  return field;
}

// The body of the channel, without its models

function readAddress() {
  if (url.value.trim() || !chosen.address) return url.value.trim();
  const parts = [...form.querySelectorAll("[data-part-name]")];
  if (!parts.every((part) => part.value.trim())) return "";
  return parts.reduce((text, part) => text.replace(`{${part.dataset.partName}}`, encodeURIComponent(part.value.trim())), chosen.address);
}

function readBody() {
  const body = readForm(form, false);
  if (readAddress()) body.base_url = readAddress();
  if (body.weight === undefined) delete body.weight;
  return body;
}

function isComplete() {
  return (key.value.trim() || !chosen.needs_key) && (readAddress() || chosen.base_url) && url.checkValidity();
}

// The test

let running = null; // its AbortController
let checked = ""; // what the latest test was of
let startedAt = -MIN_PAUSE_MS;
let waiting = null;

function forgetCheck() {
  running?.abort();
  clearTimeout(waiting);
  checked = "";
  word.textContent = "";
  word.className = "check";
  models.hidden = true;
  ticks.replaceChildren();
}

function startCheck() {
  clearTimeout(waiting);
  if (!chosen || !isComplete()) return;
  const rest = startedAt + MIN_PAUSE_MS - performance.now();
  if (rest > 0) waiting = setTimeout(startCheck, rest);
  else check();
}

async function check() {
  const { provider, base_url: base, api_key: secret } = readBody();
  const body = { name: "check", provider, base_url: base, api_key: secret };
  if (chosen.lists_models) body.sync = true;
  else body.models = ["check"];
  if (checked === JSON.stringify(body)) return;
  running?.abort();
  models.hidden = true; // what is ticked there is of another key or address
  ticks.replaceChildren();
  running = new AbortController();
  checked = JSON.stringify(body);
  startedAt = performance.now();
  tell(t("Testing…"), "");
  const { signal } = running;
  try {
    showCheck(await call("POST", "/admin/v1/channels/check", body, signal));
  } catch (fault) {
    if (signal.aborted) return;
    checked = "";
    tell(fault.message, "bad");
  }
}

function tell(text, tone) {
  word.textContent = text;
  word.className = `check ${tone}`;
}

function findRemedy(param) {
  if (param === "api_key") return t("Check that the whole key was copied, and that it belongs to this provider and region.");
  if (param === "proxy") return t("Check the gateway’s proxy.");
  return t("Check the address, and that the gateway can reach it.");
}

function showCheck(result) {
  listModels(result.models, result.asked || Boolean(chosen.base_url));
  if (!result.asked) tell(t("This provider has no model list, so its key cannot be tested for free."), "warn");
  else if (result.ok) tell(n("Connected in {ms} ms. {count} model found.", "Connected in {ms} ms. {count} models found.", result.models.length, { ms: result.test_ms }), "good");
  else if (result.param === "api_key" && !key.value) tell(t("A key is needed: {error}", { error: result.error }), "warn");
  else tell(`${result.error.replace(/[.!]?$/, ".")} ${findRemedy(result.param)}`, "bad");
  const field = result.ok || !result.asked ? null : result.param === "api_key" ? key : url;
  for (const one of [key, url]) one.removeAttribute("aria-invalid");
  if (field?.value) field.setAttribute("aria-invalid", "true");
}

for (const type of ["change", "paste"]) {
  form.addEventListener(type, (event) => {
    if (event.target.matches("#ch-key, #ch-url, [data-part-name]")) setTimeout(startCheck);
  });
}

// The models

function formatUsd(amount) {
  return `$${amount >= 0.01 || amount === 0 ? amount.toFixed(2) : String(Number(amount.toPrecision(2)))}`;
}

function formatPrice(price) {
  if (!price) return t("No price");
  if (price.free) return t("free");
  if (price.input_usd_per_million || price.output_usd_per_million) {
    return t("{input} in, {output} out", { input: formatUsd(price.input_usd_per_million), output: formatUsd(price.output_usd_per_million) });
  }
  if (price.usd_per_image) return t("{amount} per image", { amount: formatUsd(price.usd_per_image) });
  if (price.usd_per_second) return t("{amount} per second", { amount: formatUsd(price.usd_per_second) });
  return t("priced");
}

// Ticked are those that the provider lists. Of a provider without a list they are those that the gateway knows, and in a
// cloud of one's own, of which it knows no address, none of them may be set up.
function listModels(list, ticked) {
  const fragment = document.createDocumentFragment();
  for (const { id, price } of list) {
    const label = document.createElement("label");
    label.className = "check tick";
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: ticked, value: id });
    const name = Object.assign(document.createElement("span"), { textContent: id, className: "tick-name" });
    const cost = Object.assign(document.createElement("small"), { textContent: formatPrice(price) });
    label.append(box, name, cost);
    fragment.append(label);
  }
  ticks.replaceChildren(fragment);
  models.hidden = !list.length;
  const options = list.map(({ id }) => Object.assign(document.createElement("option"), { value: id }));
  form.querySelector("#alias-models").replaceChildren(...options);
  form.querySelector("[data-typed-label]").textContent = list.length ? t("Other models") : t("Models");
  tellTicked();
}

const listBoxes = () => [...ticks.querySelectorAll("input")];

function tellTicked() {
  const boxes = listBoxes();
  form.querySelector("[data-ticked]").textContent = t("{ticked} of {count} selected", { ticked: boxes.filter((box) => box.checked).length, count: boxes.length });
}

ticks.addEventListener("change", tellTicked);

document.getElementById("find-model").addEventListener("input", (event) => {
  const text = event.target.value.trim().toLowerCase();
  for (const box of listBoxes()) box.parentElement.hidden = !box.value.toLowerCase().includes(text);
});

models.addEventListener("click", (event) => {
  const button = event.target.closest("[data-tick]");
  if (!button) return;
  for (const box of listBoxes()) if (!box.parentElement.hidden) box.checked = button.dataset.tick === "all";
  tellTicked();
});

function readModels() {
  const boxes = listBoxes();
  const ticked = boxes.filter((box) => box.checked).map((box) => box.value);
  if (chosen.lists_models) {
    if (boxes.length && !ticked.length) throw Object.assign(new Error(t("Select at least one model.")), { param: "models" });
    return { sync: true, models: ticked.length === boxes.length ? [] : ticked };
  }
  const others = typed.value.split(/\n+/).map((line) => line.trim()).filter(Boolean);
  if (!ticked.length && !others.length) throw Object.assign(new Error(t("Select or enter at least one model.")), { param: "models" });
  return { sync: false, models: [...new Set([...ticked, ...others])] };
}

// Enter in a field of the search must not send the form.
document.getElementById("find-model").addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.preventDefault();
});

function clearErrors() {
  for (const place of form.querySelectorAll("[data-error-of], [data-error]")) place.hidden = true;
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearErrors();
  const missing = [...form.elements].find((field) => field.willValidate && !field.checkValidity());
  if (missing) {
    const fold = missing.closest("details");
    if (fold) fold.open = true;
    missing.reportValidity();
    return;
  }
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    const body = { ...readBody(), ...readModels() };
    form.dispatchEvent(new CustomEvent("read", { detail: body }));
    const mode = form.querySelector("[data-check-mode]").value;
    const answer = await call("POST", `/admin/v1/channels?check=${mode}`, body);
    location.assign(at(`/console/channels/${encodeURIComponent(answer.name)}`));
  } catch (fault) {
    showFault(form, fault);
    button.disabled = false;
  } finally {
    button.removeAttribute("aria-busy");
  }
});

openNamed();
