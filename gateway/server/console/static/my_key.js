// What a key says about itself. The key is in its field alone: no cookie, no storage and no address has it.
import { send } from "./api.js";
import { tellTimes } from "./console.js";
import { writeJsonCurl } from "./curl.js";
import { language, n, t } from "./language.js";
import "./passphrase.js";
import { tellUsd } from "./receipt.js";

const DAYS_SHOWN = 7;
const MAX_MODELS_SHOWN = 200;
const WINDOWS = {
  day: t("Daily limit"),
  month: t("Monthly limit"),
  lifetime: t("Limit"),
};
const RATES = {
  rpm: t("Requests per minute"),
  tpm: t("Tokens per minute"),
  max_concurrency: t("Concurrent requests"),
};
const KEEP_RULES = {
  none: t("none"),
  on_request: t("only if a request asks for it"),
  errors: t("failed requests only"),
  all: t("all requests"),
};
const byId = (id) => document.getElementById(id);
const form = byId("own-key");
const field = byId("f-secret");
const figures = byId("own-figures");

function make(tag, fields = {}, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
}

function makeTime(moment) {
  const time = make("time", {}, moment);
  time.dateTime = moment;
  return time;
}

const tellCount = (count) => count.toLocaleString(language);
const tellAmount = (usd) => (usd < 0 ? `-${tellUsd(-usd)}` : tellUsd(usd));

async function ask(path, secret) {
  const headers = { Authorization: `Bearer ${secret}` };
  return (await send(path, { credentials: "omit", cache: "no-store", headers })).json();
}

const nameOwner = (limit, name) => (limit.of === "key" ? name : t("Account: {limit}", { limit: name }));

function showLimit(limit) {
  const whole = limit.limit_usd + limit.credit_usd;
  const used = limit.spent_usd + limit.reserved_usd;
  const words = t("{left} of {limit} left", { left: tellAmount(limit.left_usd), limit: tellAmount(whole) });
  const meter = make("meter", { min: 0, max: Math.max(whole, used, 1e-9), value: Math.max(used, 0) });
  const title = WINDOWS[limit.window] ?? t("Limit: {window}", { window: limit.window });
  meter.setAttribute("aria-label", title);
  const spent = [t("{amount} spent", { amount: tellAmount(limit.spent_usd) })];
  if (limit.reserved_usd) spent.push(t("{amount} reserved for running requests", { amount: tellAmount(limit.reserved_usd) }));
  const note = make("p", {}, make("small", {}, spent.join(" · ")));
  if (limit.resets_at) note.firstChild.append(` · ${t("resets")} `, makeTime(limit.resets_at));
  const name = limit.name === "quota" ? title : `${limit.name} (${title})`;
  return [make("h3", {}, nameOwner(limit, name)), make("p", { className: "own-left" }, words), meter, note];
}

function showLimits(limits) {
  const none = make("p", {}, t("This key has no spending limit."));
  byId("own-limits").replaceChildren(...(limits.length ? limits.flatMap(showLimit) : [none]));
}

// Of which requests prompts and answers are kept.
function tellKeepRule(rule) {
  if (rule.startsWith("sampled:")) return t("a random {share}% of requests", { share: tellCount(Number(rule.slice(8)) * 100) });
  return KEEP_RULES[rule] ?? rule;
}

function showFacts(key) {
  const facts = [
    [t("Key"), make("code", {}, key.key)],
    [t("Expires"), key.expires_at ? makeTime(key.expires_at) : t("never")],
    [t("Kept prompts and answers"), tellKeepRule(key.keep_bodies)],
  ];
  for (const rate of key.rate_limits) {
    const words = t("{remaining} of {limit} left", { remaining: tellCount(rate.remaining), limit: tellCount(rate.limit) });
    facts.push([nameOwner(rate, RATES[rate.kind] ?? rate.kind), words]);
  }
  byId("own-facts").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function makeTable(first, lines, name, most) {
  const share = make("span", { className: "hidden-text" }, t("Cost compared with the highest in this table"));
  const heads = [t("Requests"), t("Tokens"), t("Cost")].map((text) => make("th", { scope: "col", className: "number" }, text));
  const head = make("tr", {}, make("th", { scope: "col" }, first), ...heads, make("th", { scope: "col" }, share));
  const rows = lines.map((line) => {
    const meter = make("meter", { min: 0, max: most || 1, value: line.cost_usd });
    meter.setAttribute("aria-label", t("Cost compared with the highest in this table"));
    const title = make("th", { scope: "row" }, line[name]);
    const numbers = [tellCount(line.requests), tellCount(line.prompt_tokens + line.completion_tokens), tellAmount(line.cost_usd)];
    const cells = numbers.map((text) => make("td", { className: "number" }, text));
    return make("tr", {}, title, ...cells, make("td", { className: "own-share" }, meter));
  });
  return make("table", { className: "plain" }, make("thead", {}, head), make("tbody", {}, ...rows));
}

function showUsage(days, models) {
  const highest = (lines) => Math.max(0, ...lines.map((line) => line.cost_usd));
  const last = days.data.slice(-DAYS_SHOWN).reverse();
  byId("own-days").replaceChildren(makeTable(t("Day (UTC)"), last, "day", highest(last)));
  const nothing = make("p", {}, t("No requests yet."));
  const used = models.data.length ? makeTable(t("Model"), models.data, "model", highest(models.data)) : nothing;
  byId("own-used").replaceChildren(used);
}

function showModels(ids, listed) {
  const place = byId("own-models");
  place.replaceChildren(...ids.slice(0, MAX_MODELS_SHOWN).flatMap((id) => [make("code", {}, id), "  "]));
  const more = ids.length - MAX_MODELS_SHOWN;
  if (more > 0) place.append(n("and {count} more", "and {count} more", more));
  if (!ids.length) place.textContent = t("No models at the moment.");
  const model = listed.find((one) => one.kind === "chat")?.id ?? ids[0] ?? "MODEL";
  const body = { model, messages: [{ role: "user", content: "Hello" }] };
  byId("own-curl").textContent = writeJsonCurl(`${figures.dataset.origin}/v1/chat/completions`, body);
}

function forget() {
  field.value = "";
  figures.hidden = true;
  for (const place of ["own-name", "own-limits", "own-facts", "own-days", "own-used", "own-models", "own-curl"]) byId(place).replaceChildren();
  document.body.classList.remove("shows-figures");
  field.focus();
}

async function show() {
  const secret = field.value.trim();
  const paths = ["/v1/key", "/v1/key/usage?by=day", "/v1/key/usage?by=model", "/v1/models"];
  const [key, days, models, listed] = await Promise.all(paths.map((path) => ask(path, secret)));
  byId("own-name").textContent = key.name;
  byId("own-account").hidden = key.account_limits !== "hidden";
  showLimits(key.limits);
  showFacts(key);
  showUsage(days, models);
  showModels(key.models, listed.data);
  tellTimes(figures);
  figures.hidden = false;
  document.body.classList.add("shows-figures");
}

async function load(button) {
  const error = byId("own-key-error");
  error.hidden = true;
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    await show();
    byId("own-name").focus();
  } catch (fault) {
    figures.hidden = true;
    error.textContent = fault.message;
    error.hidden = false;
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  load(form.querySelector("[type=submit]"));
});
byId("own-again").addEventListener("click", (event) => load(event.currentTarget));
byId("own-forget").addEventListener("click", forget);
addEventListener("pagehide", forget);
