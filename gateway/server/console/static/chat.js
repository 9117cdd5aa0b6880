// The playground's chat: one to four models, turn by turn, streamed, with what each answer cost.
import { watchAttachments } from "./attachments.js";
import { WRITERS } from "./code.js";
import { findConversation, forgetConversation, keepConversation, takeDraft } from "./conversation.js";
import { clearFaults } from "./faults.js";
import { showFault } from "./forms.js";
import { n, t } from "./language.js";
import { watchModel } from "./model.js";
import { fitParameters, listUnreadable, readParameters, showParameters, WrongField } from "./parameters.js";
import { tellAnswer } from "./receipt.js";
import { newTrace, talk } from "./talk.js";
import { toast } from "./toast.js";
import { addAnswers, addQuestion } from "./turns.js";

const byId = (id) => document.getElementById(id);
const form = byId("chat");
const log = byId("log");
const list = byId("turns");
const message = byId("message");
const send = byId("send");
const stop = byId("stop-answer");
const again = byId("again");
const results = byId("send-results");
const model = watchModel(form);
const others = [...form.querySelectorAll("[data-other-model]")];
const attachments = watchAttachments(form, byId("files"), byId("attached"), () => listUnreadable(listModels()));
const views = new Map(); // by a turn of `said`: its element, and the answers on it
let said = []; // the turns of this conversation; see conversation.js
let leave = null;
let code = null; // the request that the dialog shows as code

function listModels() {
  return [model.read(), ...others.map((field) => field.value).filter(Boolean)];
}

// A message's content: a text, or its parts if there are files.
function writeContent({ text, files }) {
  if (!files.length) return text;
  return [...files.map(({ part }) => part), ...(text ? [{ type: "text", text }] : [])];
}

// The messages of one answer: with the calls of tools come what the tools answered.
function writeAnswer({ text, calls }) {
  if (!calls.length) return text ? [{ role: "assistant", content: text }] : [];
  const asked = calls.map((one) => ({
    id: one.id, type: "function", function: { name: one.name, arguments: one.arguments },
  }));
  return [
    { role: "assistant", content: text || null, tool_calls: asked },
    ...calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result ?? "" })),
  ];
}

// The request to the model of one side. Each model has its own conversation; an answer that failed is no part of it.
function writeBody(turns, side, name, parameters) {
  const system = form.elements.system.value.trim();
  const messages = turns.flatMap((turn) => {
    if (turn.role === "user") return [{ role: "user", content: writeContent(turn) }];
    const isSame = turn.answers[side]?.who === name; // the models may have changed their places since
    const answer = isSame ? turn.answers[side] : turn.answers.find((one) => one?.who === name) ?? turn.answers[0];
    return answer && !answer.error ? writeAnswer(answer) : [];
  });
  return { model: name, messages: [...(system ? [{ role: "system", content: system }] : []), ...messages], ...fitParameters(parameters, name) };
}

// Whoever has scrolled up to read stays there.
function keepingUp(change) {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
  change();
  if (near) log.scrollTop = log.scrollHeight;
}

function hearInto(view) {
  return {
    text: (piece) => {
      view.answer.text += piece;
      view.drawing ??= requestAnimationFrame(() => keepingUp(() => view.showText())); // many pieces, one drawing
    },
    reasoning: (piece) => keepingUp(() => view.addReasoning(piece)),
  };
}

// Streams one answer into its place.
async function hear(view, body, signal) {
  const { answer } = view;
  const trace = newTrace();
  const key = form.elements.key.value;
  let how = "";
  try {
    await talk(body, key, hearInto(view), trace, signal);
    if (trace.finish === "length") how = t("cut off: max tokens reached");
  } catch (fault) {
    if (fault.name === "AbortError") how = t("stopped");
    else if (answer.text) how = t("interrupted");
    if (fault.name !== "AbortError") answer.error = fault.message;
    if (form.querySelector(`[data-error-of="${CSS.escape(fault.param ?? "")}"]`)) showFault(form, fault);
  }
  answer.calls = how ? [] : trace.calls.filter(Boolean).map((one, number) => ({ ...one, id: one.id || `call_${number}` }));
  keepingUp(() => view.showEnd());
  view.setBusy(false);
  tellAnswer(view.receipt, trace, key, how).then(() => keepingUp(() => {}));
}

// The parameters of the next request; null, with the fault beside its field, if one of them is wrong.
function readOrShow() {
  clearFaults(form);
  try {
    return readParameters(form);
  } catch (fault) {
    if (!(fault instanceof WrongField)) throw fault;
    showFault(form, fault);
    return null;
  }
}

// Asks the models of the sides that are given for the next answer.
async function ask(sides, parameters) {
  const names = listModels();
  const bodies = sides.map((side) => writeBody(said, side, names[side], parameters));
  const conversation = said; // a new one may have begun before these answers end
  const turn = { role: "assistant", answers: names.map((who, side) => (sides.includes(side) ? { who, text: "", calls: [] } : null)) };
  said.push(turn);
  const { item, shown } = addAnswers(list, turn.answers);
  views.set(turn, { item, shown });
  begin(shown);
  log.scrollTop = log.scrollHeight;
  await Promise.all(sides.map((side, place) => hear(shown[side], bodies[place], leave.signal)));
  end();
  if (conversation === said) keepConversation(form.dataset.owner, said);
  showNext();
}

const allSides = () => listModels().map((_, side) => side);

function addUserTurn(turn) {
  said.push(turn);
  views.set(turn, { item: addQuestion(list, turn, () => edit(turn)), shown: [] });
  showConversation();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = message.value.trim();
  const files = attachments.read();
  if (leave || (!text && !files.length)) return;
  const parameters = readOrShow();
  if (!parameters) return;
  closeCalls();
  addUserTurn({ role: "user", text, files });
  message.value = "";
  attachments.put([]);
  await ask(allSides(), parameters);
  message.focus();
});

// Nothing of `turn` and what follows stays; what was asked goes back to where it was written.
function takeBack(turn) {
  for (const gone of said.splice(said.indexOf(turn))) {
    views.get(gone)?.item.remove();
    views.delete(gone);
  }
  if (turn.role === "user" && !message.value) {
    message.value = turn.text;
    attachments.put(turn.files);
  }
  keepConversation(form.dataset.owner, said);
  showConversation();
  showNext();
}

// Whether a question that was taken back still stands as it was asked: what was rewritten since is lost by nothing.
function isUnchanged(turn) {
  const files = attachments.read();
  return message.value === turn.text && files.length === turn.files.length && files.every((file, index) => file === turn.files[index]);
}

// Takes the conversation back to a question. What is removed by that, and what was being written, comes back by "Undo".
function edit(turn) {
  leave?.abort();
  const conversation = said;
  const start = said.indexOf(turn);
  const removed = said.slice(start).map((gone) => [gone, views.get(gone)]);
  const draft = [message.value, attachments.read()];
  message.value = "";
  takeBack(turn);
  message.focus();
  toast(n("{count} turn removed", "{count} turns removed", removed.length), "good", () => {
    if (said !== conversation || said.length !== start) {
      toast(t("The conversation has continued, so this was not undone."), "bad");
      return;
    }
    for (const [gone, view] of removed) {
      said.push(gone);
      views.set(gone, view);
      list.append(view.item);
    }
    if (isUnchanged(turn)) {
      message.value = draft[0];
      attachments.put(draft[1]);
    }
    keepConversation(form.dataset.owner, said);
    showConversation();
    showNext();
  });
}

// The same question once more, for every model.
again.addEventListener("click", async () => {
  const last = said.at(-1);
  const parameters = leave || last?.role !== "assistant" ? null : readOrShow();
  if (!parameters) return;
  takeBack(last);
  const sides = allSides().filter((side) => last.answers.length <= side || last.answers[side]);
  await ask(sides, parameters);
});

function closeCalls() {
  for (const view of views.get(said.at(-1))?.shown ?? []) if (view?.isOpen()) view.closeCalls();
}

// The tools have answered: those models go on that had called them.
results.addEventListener("click", async () => {
  const { shown } = views.get(said.at(-1));
  const waiting = shown.filter((view) => view?.isOpen()).map((view) => view.answer.who);
  const sides = listModels().flatMap((name, side) => (waiting.includes(name) ? [side] : []));
  if (!sides.length) toast(t("Choose {models} again to send the results.", { models: waiting.join(", ") }), "bad");
  const parameters = leave || !sides.length ? null : readOrShow();
  if (!parameters) return;
  closeCalls();
  await ask(sides, parameters);
});

function showNext() {
  const last = said.at(-1);
  const open = last?.role === "assistant" && views.get(last).shown.some((view) => view?.isOpen());
  again.hidden = Boolean(leave) || last?.role !== "assistant";
  results.hidden = Boolean(leave) || !open;
}

function showConversation() {
  const isEmpty = said.length === 0;
  log.hidden = isEmpty;
  byId("no-turns").hidden = !isEmpty;
  byId("new-chat").hidden = isEmpty;
  log.scrollTop = log.scrollHeight;
}

function begin(shown) {
  leave = new AbortController();
  for (const view of shown) view?.setBusy(true);
  send.disabled = true;
  send.setAttribute("aria-busy", "true");
  stop.hidden = false;
  showNext();
}

function end() {
  leave = null;
  send.disabled = false;
  send.removeAttribute("aria-busy");
  stop.hidden = true;
}

function restore() {
  const draft = takeDraft(form.dataset.owner);
  if (draft) {
    message.value = draft.message;
    form.elements.system.value = draft.system;
  }
  for (const turn of findConversation(form.dataset.owner)) {
    if (turn.role === "user") {
      addUserTurn(turn);
      continue;
    }
    said.push(turn);
    const added = addAnswers(list, turn.answers);
    for (const view of added.shown) view?.showEnd();
    views.set(turn, added);
  }
  showConversation();
  showNext();
}

stop.addEventListener("click", () => leave?.abort());
byId("new-chat").addEventListener("click", () => {
  leave?.abort();
  said = [];
  views.clear();
  list.replaceChildren();
  forgetConversation();
  showConversation();
  showNext();
  message.focus();
});

// One more model can be chosen as soon as the one before is.
function showOthers() {
  others.forEach((field, number) => {
    field.closest(".field").hidden = number > 0 && !others[number - 1].value && !field.value;
  });
  showParameters(form, listModels());
}
for (const field of others) field.addEventListener("change", showOthers);
model.onChange(showOthers);

form.elements.reasoning_effort.addEventListener("change", showOthers);
form.elements.response_format.addEventListener("change", (event) => {
  byId("schema-field").hidden = event.target.value !== "json_schema";
});

byId("show-code").addEventListener("click", () => {
  const parameters = readOrShow();
  if (!parameters) return;
  const text = message.value.trim() || (said.length ? "" : message.placeholder);
  const files = attachments.read();
  const next = text || files.length ? [{ role: "user", text, files }] : [];
  code = { ...writeBody([...said, ...next], 0, model.read(), parameters), stream: true };
  for (const language of Object.keys(WRITERS)) byId(`code-${language}`).textContent = "";
  writeCode();
  byId("as-code").showModal();
});

// Only in the language that is shown: with files, a request has megabytes.
function writeCode() {
  const place = byId("as-code").querySelector("[role=tabpanel]:not([hidden]) code");
  if (code && !place.textContent) place.textContent = WRITERS[place.id.replace("code-", "")](form.dataset.url, code);
}
byId("as-code").querySelector("[role=tablist]").addEventListener("tabopen", writeCode);
byId("as-code").addEventListener("close", () => { code = null; });
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!send.disabled) form.requestSubmit();
});
restore();
showOthers();
