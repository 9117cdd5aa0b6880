// The dry run beside the steps of a route: it follows every change of the rows and of the sample request. Nothing is saved.
//
//   <section data-dry-run="POST /admin/v1/routes/fast/explain"> with a form for the request, and a place [data-walk] whose
//   data-words has the words for the verdicts, and data-reasons the translations of reasons (console/reasons.py).
import { call } from "./api.js";
import { t } from "./language.js";
import { tellUsd } from "./receipt.js";
import { clearStepErrors, listRows, readRoute, showStepError } from "./routes.js";

const DELAY_MS = 300;
const TONES = { first: "good", next: "quiet" };
const panel = document.querySelector("[data-dry-run]");
const sample = panel.querySelector("form");
const place = panel.querySelector("[data-walk]");
const problem = panel.querySelector("[data-walk-problem]");
const words = JSON.parse(place.dataset.words);
const reasons = JSON.parse(place.dataset.reasons).map(([pattern, text]) => [new RegExp(pattern, "s"), text]);
const form = document.querySelector("[data-route]");

function make(name, text, className = "") {
  return Object.assign(document.createElement(name), { textContent: text, className });
}

function tellPart(name, part) {
  if (name === "causes") return part.split(" and ").map(tellReason).join("、");
  return name === "reason" || name === "error" ? tellReason(part) : part;
}

// A reason of the admin API in the page's language.
function tellReason(reason) {
  for (const [pattern, text] of reasons) {
    const found = pattern.exec(reason);
    if (found) return text.replaceAll(/\{(\w+)\}/g, (_, name) => tellPart(name, found.groups[name]));
  }
  return reason;
}

const percent = (share) => `${Math.round(share * 1000) / 10} %`;

function tellPrice(channel) {
  const price = channel.price;
  if (!price) return t("no price");
  const factor = channel.price_multiplier;
  const input = tellUsd(price.input_usd_per_million * factor);
  const output = tellUsd(price.output_usd_per_million * factor);
  if (price.input_usd_per_million || price.output_usd_per_million) return t("{input} in, {output} out", { input, output });
  for (const [amount, unit] of [[price.usd_per_image, t("per image")], [price.usd_per_second, t("per second")], [price.usd_per_million_characters, t("per million characters")]]) {
    if (amount) return `${tellUsd(amount * factor)} ${unit}`;
  }
  return t("free");
}

// A channel of the model with its price, or with what is in its way. Those that do not offer the model are left out.
function drawChannel(channel) {
  const line = make("li", `${channel.channel}: `);
  if (channel.rank) line.append(channel.chance < 1 ? `${percent(channel.chance)}, ` : "", tellPrice(channel));
  else line.append(tellReason(channel.reason ?? ""));
  return line;
}

function drawModel(model, several) {
  const part = make("div", "");
  part.append(make("span", model.model));
  if (several && model.chance) part.append(" ", make("small", percent(model.chance)));
  const channels = model.channels.filter((channel) => "state" in channel);
  const list = document.createElement("ul");
  list.append(...(channels.length ? channels.map(drawChannel) : [make("li", t("no channel"))]));
  part.append(list);
  return part;
}

function drawStep(step, number) {
  const item = make("li", "", step.verdict);
  const head = make("div", "", "row");
  head.classList.add("between");
  head.append(make("strong", t("Step {step}", { step: number })), make("span", words[step.verdict], `badge ${TONES[step.verdict] ?? "warn"}`));
  item.append(head);
  if (step.reason) item.append(make("p", tellReason(step.reason), "inert-text"));
  item.append(...step.models.map((model) => drawModel(model, step.models.length > 1)));
  if (step.reserved_usd !== null) item.append(make("small", t("reserves at most {amount}", { amount: tellUsd(step.reserved_usd) })));
  return item;
}

function say(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

let running = null;
let timer = 0;

// Steps without a model yet are left out; the others keep their numbers.
async function update() {
  running?.abort();
  const mine = running = new AbortController();
  const route = readRoute(form);
  const numbers = route.step.flatMap((step, index) => (step.models.length ? [index] : []));
  route.step = numbers.map((index) => route.step[index]);
  if (!numbers.length) return;
  const query = new URLSearchParams([...new FormData(sample)].filter(([, value]) => value !== ""));
  const [method, path] = panel.dataset.dryRun.split(" ");
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await call(method, `${path}?${query}`, route, mine.signal);
    clearStepErrors(form);
    say(answer.refused ? tellReason(answer.refused.message) : answer.served ? "" : t("No channel can serve a request now."));
    place.replaceChildren(...answer.steps.map((step, index) => drawStep(step, numbers[index] + 1)));
    listRows(form).forEach((row, index) => row.classList.toggle("chosen", answer.steps[numbers.indexOf(index)]?.verdict === "first"));
  } catch (fault) {
    if (fault.name === "AbortError") return;
    clearStepErrors(form);
    const param = fault.param?.replace(/^step\[(\d+)\]/, (_, index) => `step[${numbers[index]}]`);
    if (!showStepError(form, { param, message: fault.message }, false)) say(fault.message);
  } finally {
    if (mine === running) place.removeAttribute("aria-busy");
  }
}

function plan() {
  clearTimeout(timer);
  timer = setTimeout(update, DELAY_MS);
}

for (const source of [form, sample]) {
  source.addEventListener("input", plan);
  source.addEventListener("change", plan);
}
sample.addEventListener("submit", (event) => {
  event.preventDefault();
  update();
});
update();
