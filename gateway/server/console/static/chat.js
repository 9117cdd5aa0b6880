// The playground's chat: turn by turn, streamed, with what each answer cost.
import { findConversation, forgetConversation, keepConversation, takeDraft } from "./conversation.js";
import { clearFaults } from "./faults.js";
import { showFault } from "./forms.js";
import { showCurl, writeJsonCurl } from "./curl.js";
import { t } from "./language.js";
import { renderMarkdown } from "./markdown.js";
import { watchModel } from "./model.js";
import { showReceipt, tellAnswer } from "./receipt.js";
import { newTrace, talk } from "./talk.js";
import { toast } from "./toast.js";

const byId = (id) => document.getElementById(id);
const form = byId("chat");
const log = byId("log");
const list = byId("turns");
const message = byId("message");
const send = byId("send");
const stop = byId("stop");
const model = watchModel(form);
const second = byId("second-model");
let said = []; // the turns of this conversation: role, content, and who is shown as the author
let leave = null;

function readSettings() {
  const settings = {};
  for (const name of ["temperature", "max_tokens"]) {
    const value = form.elements[name].value;
    if (value !== "") settings[name] = Number(value);
  }
  return settings;
}

// `side` 1: the conversation with the second model, where there is one.
function readBody(next, side = 0) {
  const system = form.elements.system.value.trim();
  const turns = said.map(({ role, content, other }) => ({ role, content: side && other ? other.content : content }));
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns.filter(({ content }) => content)];
  if (next) messages.push({ role: "user", content: next });
  return { model: side ? second.value : model.read(), messages, ...readSettings() };
}

// `text` is what the reader has said; without it the turn is the model's.
function addTurn(who, text = "") {
  const turn = byId("turn").content.firstElementChild.cloneNode(true);
  turn.classList.add(text ? "theirs" : "ours");
  if (text) turn.querySelectorAll(".reasoning, .receipt").forEach((part) => part.remove());
  turn.querySelector(".who").textContent = who;
  const words = turn.querySelector(".said");
  words.textContent = text;
  const told = { turn, words, text, copy: turn.querySelector("button") };
  const { copy } = told;
  copy.setAttribute("aria-label", t("Copy: {name}", { name: who }));
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(told.text);
      toast(t("Copied"));
    } catch {
      toast(t("This browser cannot copy here: select the text and copy it"), "bad");
    }
  });
  copy.hidden = !text;
  list.append(turn);
  log.hidden = false;
  byId("no-turns").hidden = true;
  byId("new-chat").hidden = false;
  log.scrollTop = log.scrollHeight;
  return told;
}

// Whoever has scrolled up to read stays there.
async function keepingUp(change) {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
  const changing = change();
  if (near) log.scrollTop = log.scrollHeight;
  await changing;
  if (near) log.scrollTop = log.scrollHeight;
}

function showText(answer) {
  answer.drawing = null;
  answer.words.replaceChildren(...renderMarkdown(answer.text));
}

function hearInto(answer) {
  const reasoning = answer.turn.querySelector(".reasoning");
  return {
    text: (piece) => {
      answer.text += piece;
      answer.drawing ??= requestAnimationFrame(() => keepingUp(() => showText(answer))); // many pieces, one drawing
    },
    reasoning: (piece) =>
      keepingUp(() => {
        reasoning.hidden = false;
        reasoning.querySelector("p").append(piece);
      }),
  };
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = message.value.trim();
  if (leave || !text) return;
  clearFaults(form);
  const bodies = second.value ? [readBody(text), readBody(text, 1)] : [readBody(text)];
  const conversation = said; // a new one may have begun before this answer ends
  const question = addTurn(t("You"), text);
  const answers = bodies.map((body) => addTurn(body.model));
  place(answers);
  message.value = "";
  begin(answers);
  const faults = await Promise.all(answers.map((answer, side) => hear(answer, bodies[side], leave.signal)));
  end();
  const fault = faults.find((one) => one && one.name !== "AbortError");
  if (answers.some((answer, side) => answer.text || !faults[side])) keep(conversation, text, answers);
  else takeBack([question, ...answers], text);
  if (fault && !(answers.length > 1 && faults.includes(null))) showFault(form, fault);
  else message.focus();
});

// Streams one answer into its turn. Returns what went wrong, or null.
async function hear(answer, body, signal) {
  const trace = newTrace();
  const key = form.elements.key.value;
  try {
    await talk(body, key, hearInto(answer), trace, signal);
    settle(answer, trace, key, trace.finish === "length" ? t("cut off: max tokens reached") : "");
    return null;
  } catch (fault) {
    const stopped = fault.name === "AbortError";
    if (!answer.text && !stopped) answer.words.textContent = fault.message; // seen where another model has answered
    else settle(answer, trace, key, stopped ? t("stopped") : t("interrupted"));
    return fault;
  } finally {
    answer.turn.removeAttribute("aria-busy");
  }
}

function keep(conversation, question, [answer, other]) {
  const tell = ({ turn, text }) => ({ content: text, who: turn.querySelector(".who").textContent });
  const told = { role: "assistant", ...tell(answer), ...(other && { other: tell(other) }) };
  conversation.push({ role: "user", content: question }, told);
  if (conversation === said) keepConversation(form.dataset.owner, said);
}

// Two answers stand side by side; a question and a single answer take the whole width.
function place(answers) {
  if (answers.length > 1) list.classList.add("two");
  else for (const { turn } of answers) turn.classList.add("single");
}

function restore() {
  const draft = takeDraft(form.dataset.owner);
  if (draft) {
    message.value = draft.message;
    form.elements.system.value = draft.system;
  }
  said = findConversation(form.dataset.owner);
  for (const { role, content, who, other } of said) {
    if (role === "user") {
      addTurn(t("You"), content);
      continue;
    }
    place([{ content, who }, ...(other ? [other] : [])].map(restoreAnswer));
  }
}

function restoreAnswer({ content, who }) {
  const answer = addTurn(who);
  answer.text = content;
  if (content) showText(answer);
  else answer.words.textContent = t("(Empty answer)");
  answer.copy.hidden = !content;
  return answer;
}

function settle(answer, trace, key, how) {
  if (answer.drawing) cancelAnimationFrame(answer.drawing);
  keepingUp(() => showText(answer));
  answer.copy.hidden = !answer.text;
  if (!answer.text) answer.words.textContent = t("(Empty answer)");
  keepingUp(() => tellAnswer(answer.turn.querySelector(".receipt"), trace, key, how));
}

// Nothing came: what was asked goes back to where it was written, so that it can be sent again.
function takeBack(turns, text) {
  for (const { turn } of turns) turn.remove();
  if (!message.value) message.value = text;
  if (!list.children.length) clear();
}

function begin(answers) {
  leave = new AbortController();
  for (const { turn } of answers) turn.setAttribute("aria-busy", "true");
  send.disabled = true;
  send.setAttribute("aria-busy", "true");
  stop.hidden = false;
}

function end() {
  leave = null;
  send.disabled = false;
  send.removeAttribute("aria-busy");
  stop.hidden = true;
}

function clear() {
  said = [];
  forgetConversation();
  list.replaceChildren();
  list.classList.remove("two");
  log.hidden = true;
  byId("no-turns").hidden = false;
  byId("new-chat").hidden = true;
}

stop.addEventListener("click", () => leave?.abort());
byId("new-chat").addEventListener("click", () => {
  leave?.abort();
  clear();
  message.focus();
});
byId("show-curl").addEventListener("click", () => {
  const body = readBody(message.value.trim() || (said.length ? "" : message.placeholder));
  showCurl(writeJsonCurl(form.dataset.url, { ...body, stream: true }, "-N "));
});
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!send.disabled) form.requestSubmit();
});
restore();
