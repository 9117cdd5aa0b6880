// The kept bodies of a request (kept_body.html): what was asked and answered, put together, and raw with times.
// Sections may come later, in a drawer: clicks are taken from the whole page.
import { at, call, Fault } from "./api.js";
import { language, t } from "./language.js";
import { tellMs, tellUsd } from "./receipt.js";

const LOSSES = {
  memory: t("Nothing was kept: too much data was waiting to be written."),
  size: t("Nothing was kept: a body was too large."),
  disk: t("Nothing was kept: writing to the disk failed."),
  store: t("Nothing was kept: too much data was waiting to be moved to the shared store."),
  fault: t("Nothing was kept: an error occurred in the gateway. See its log."),
};
const KINDS = { request: t("Request"), answer: t("Answer"), provider_error: t("Provider error") };
const ROLES = { system: t("System"), user: t("User"), assistant: t("Assistant"), model: t("Assistant"), tool: t("Tool") };

function make(tag, fields = {}, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const tellCount = (count) => count.toLocaleString(language);

function makePre(text, label) {
  const pre = make("pre", { tabIndex: 0, className: "inert-text" }, make("code", {}, text));
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", label);
  return make("div", { className: "code" }, pre);
}

function makeText(title, text) {
  return [make("h4", {}, title), makePre(text, title)];
}

function makeCalls(calls) {
  return calls.flatMap((one) => makeText(t("Tool call: {name}", { name: one.name }), one.arguments));
}

function showMessage(message) {
  const title = ROLES[message.role] ?? message.role;
  return [...(message.text ? makeText(title, message.text) : []), ...makeCalls(message.tool_calls)];
}

function makeFold(title, ...children) {
  return make("details", {}, make("summary", {}, title), ...children);
}

function showAnswer(answer, index, count) {
  const title = count > 1 ? t("Answer {number}", { number: index + 1 }) : t("Text");
  return [
    ...(answer.reasoning ? [makeFold(t("Reasoning"), makePre(answer.reasoning, t("Reasoning")))] : []),
    ...(answer.text ? makeText(title, answer.text) : []),
    ...makeCalls(answer.tool_calls),
    ...(answer.finish_reason ? [make("p", {}, make("small", {}, t("Ended with: {reason}", { reason: answer.finish_reason })))] : []),
  ];
}

// The events of a stream, each after the time at which it was sent.
function writeEvents(body) {
  const events = body.content.split(/(?:\r\n|\n|\r){2}/).filter(Boolean);
  return events.map((event, number) => `${body.event_times_ms[number] ?? "?"} ms\n${event}`).join("\n\n");
}

function noteBody(body) {
  const notes = [body.media_type, t("{count} bytes", { count: tellCount(body.received_bytes) })];
  if (body.channel) notes.push(t("channel {name}, status {status}", { name: body.channel, status: body.status ?? "–" }));
  if (body.prompt_tokens !== null || body.completion_tokens !== null) {
    const counts = { input: tellCount(body.prompt_tokens ?? 0), output: tellCount(body.completion_tokens ?? 0) };
    notes.push(t("{input} tokens in, {output} out", counts));
  }
  if (body.redacted) notes.push(t("some values were redacted"));
  if (body.cut) notes.push(t("the middle was omitted"));
  return make("p", {}, make("small", {}, notes.join(" · ")));
}

function showBody(body) {
  const title = KINDS[body.kind] ?? body.kind;
  const isStream = body.event_times_ms.length > 0;
  const raw = makePre(isStream ? writeEvents(body) : body.content, t("Raw"));
  const fold = makeFold(isStream ? t("Raw, with timestamps") : t("Raw"), raw);
  const read = [...body.messages.flatMap(showMessage), ...body.answers.flatMap((one, index) => showAnswer(one, index, body.answers.length))];
  if (!read.length) fold.open = true;
  return [make("h3", {}, title), noteBody(body), ...read, fold];
}

async function show(section, button) {
  const note = section.querySelector("[data-body-note]");
  button.disabled = true;
  try {
    const kept = await call("GET", `/admin/v1/requests/${encodeURIComponent(section.dataset.keptBody)}/body`);
    section.querySelector("[data-body-parts]").replaceChildren(...kept.bodies.flatMap(showBody));
    note.textContent = kept.loss ? LOSSES[kept.loss] ?? kept.loss : "";
    for (const part of section.querySelectorAll("[data-replay-form], [data-replay-note]")) part.hidden = !kept.bodies.length;
    section.dispatchEvent(new CustomEvent("bodyshown", { bubbles: true, detail: kept }));
  } catch (fault) {
    if (!(fault instanceof Fault)) throw fault;
    note.textContent = fault.message;
  } finally {
    button.disabled = false;
  }
}

function makeRow(title, first, second) {
  return make("tr", {}, make("th", { scope: "row" }, title), make("td", {}, first), make("td", {}, second));
}

const tellDuration = (ms) => (ms === null ? "–" : tellMs(ms));

function showRuns({ first, second }) {
  const link = make("a", { href: at(`/console/requests/${encodeURIComponent(second.id)}`) }, t("sent again"));
  const heads = [make("td"), make("th", { scope: "col" }, t("original")), make("th", { scope: "col" }, link)];
  const rows = [
    [t("Model"), (run) => run.served_model || run.model],
    [t("Outcome"), (run) => (run.error ? `${run.outcome}: ${run.error}` : run.outcome)],
    [t("Tokens"), (run) => `${tellCount(run.prompt_tokens)} + ${tellCount(run.completion_tokens)}`],
    [t("Cost"), (run) => tellUsd(run.cost_usd)],
    [t("First byte"), (run) => tellDuration(run.first_byte_ms)],
    [t("Duration"), (run) => tellDuration(run.total_ms)],
    [t("Tools"), (run) => run.tools.join(", ") || "–"],
  ];
  const body = rows.map(([title, tell]) => makeRow(title, tell(first), tell(second)));
  return make("table", { className: "plain" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
}

// Administrators can let another model answer where the first one cannot.
function linkFallback(section, { first, second }) {
  if (section.dataset.fallback === undefined || second.error || second.model === first.model) return [];
  const path = `/console/requests/${encodeURIComponent(section.dataset.keptBody)}/fallback?model=${encodeURIComponent(second.model)}`;
  const link = make("a", { className: "button", href: at(path) }, t("Make {model} the fallback", { model: second.model }));
  return [make("p", {}, link)];
}

// The texts in one: what only the first answer has is struck out, what only the second has is underlined.
function showChanges(compared) {
  if (compared.same_text) return make("p", {}, t("Both answers have the same text."));
  if (compared.same_text === null) return make("p", {}, t("The texts cannot be compared."));
  if (!compared.changes) return make("p", {}, t("The texts are too long to compare."));
  const tags = { same: "span", old: "del", new: "ins" };
  const texts = compared.changes.map((change) => make(tags[change.kind] ?? "span", {}, change.text));
  return make("div", { className: "code" }, make("pre", { tabIndex: 0, className: "inert-text" }, ...texts));
}

async function replay(form) {
  const section = form.closest("[data-kept-body]");
  const result = section.querySelector("[data-replay-result]");
  const button = form.querySelector("button");
  button.disabled = true;
  result.replaceChildren(make("p", {}, t("Waiting for the answer…")));
  try {
    const body = { model: form.elements.model.value.trim(), allow_redacted: form.elements.allow_redacted.checked };
    const path = `/admin/v1/requests/${encodeURIComponent(section.dataset.keptBody)}/replay`;
    const compared = await call("POST", path, body);
    result.replaceChildren(showRuns(compared), ...linkFallback(section, compared), showChanges(compared));
  } catch (fault) {
    if (!(fault instanceof Fault)) throw fault;
    result.replaceChildren(make("p", { className: "error" }, fault.message));
  } finally {
    button.disabled = false;
  }
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-replay-form]")) return;
  event.preventDefault();
  replay(event.target);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-show-body]");
  if (button) show(button.closest("[data-kept-body]"), button);
});
