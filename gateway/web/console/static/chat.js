// The playground's chat: turn by turn, streamed, with what each answer cost.
import { showFault } from "./forms.js";
import { showCurl, writeJsonCurl } from "./curl.js";
import { watchModel } from "./model.js";
import { showReceipt, tellAnswer } from "./receipt.js";
import { newTrace, talk } from "./talk.js";
import { toast } from "./toast.js";

const byId = (id) => document.getElementById(id);
const form = byId("chat");
const list = byId("turns");
const message = byId("message");
const send = byId("send");
const stop = byId("stop");
const model = watchModel(form);
let said = []; // what the next call tells of this conversation
let leave = null;

function readSettings() {
  const settings = {};
  for (const name of ["temperature", "max_tokens"]) {
    const value = form.elements[name].value;
    if (value !== "") settings[name] = Number(value);
  }
  return settings;
}

function readBody(next) {
  const system = form.elements.system.value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...said];
  if (next) messages.push({ role: "user", content: next });
  return { model: model.read(), messages, ...readSettings() };
}

function addTurn(who, text = "") {
  const turn = byId("turn").content.firstElementChild.cloneNode(true);
  turn.classList.add(who === "You" ? "theirs" : "ours");
  turn.querySelector(".who").textContent = who;
  const words = turn.querySelector(".said");
  words.textContent = text;
  const copy = turn.querySelector("button");
  copy.setAttribute("aria-label", `Copy: ${who}`);
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(words.textContent);
      toast("Copied");
    } catch {
      toast("This browser lets nothing be copied here: select it by hand", "bad");
    }
  });
  copy.hidden = !text;
  list.append(turn);
  list.hidden = false;
  byId("no-turns").hidden = true;
  byId("new-chat").hidden = false;
  list.scrollTop = list.scrollHeight;
  return { turn, words, copy };
}

// Whoever has scrolled up to read stays there.
function keepingUp(change) {
  const near = list.scrollHeight - list.scrollTop - list.clientHeight < 48;
  change();
  if (near) list.scrollTop = list.scrollHeight;
}

function hearInto({ turn, words }) {
  const reasoning = turn.querySelector(".reasoning");
  return {
    text: (piece) => keepingUp(() => words.append(piece)),
    reasoning: (piece) =>
      keepingUp(() => {
        reasoning.hidden = false;
        reasoning.querySelector("p").append(piece);
      }),
  };
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (leave) return;
  for (const error of form.querySelectorAll(".error")) error.hidden = true;
  const text = message.value.trim();
  const body = readBody(text);
  const question = addTurn("You", text);
  const answer = addTurn(body.model);
  const trace = newTrace();
  const key = form.elements.key.value;
  message.value = "";
  begin(answer);
  try {
    await talk(body, key, hearInto(answer), trace, leave.signal);
    settle(answer, trace, key, text, trace.finish === "length" ? "cut short: the most tokens are reached" : "");
  } catch (fault) {
    const stopped = fault.name === "AbortError";
    if (!stopped) showFault(form, fault);
    if (answer.words.textContent) {
      settle(answer, trace, key, text, stopped ? "stopped" : "broken off");
    } else {
      takeBack(question, answer, text);
    }
  }
  end(answer);
});

function settle(answer, trace, key, text, how) {
  const words = answer.words.textContent;
  said.push({ role: "user", content: text }, { role: "assistant", content: words });
  answer.copy.hidden = !words;
  if (!words) answer.words.textContent = "(The model said nothing.)";
  tellAnswer(answer.turn.querySelector(".receipt"), trace, key, how);
}

// Nothing came: what was asked goes back to where it was written, so that it can be sent again.
function takeBack(question, answer, text) {
  question.turn.remove();
  answer.turn.remove();
  if (!message.value) message.value = text;
  if (!list.children.length) clear();
}

function begin({ turn }) {
  leave = new AbortController();
  turn.setAttribute("aria-busy", "true");
  send.disabled = true;
  send.setAttribute("aria-busy", "true");
  stop.hidden = false;
}

function end({ turn }) {
  leave = null;
  turn.removeAttribute("aria-busy");
  send.disabled = false;
  send.removeAttribute("aria-busy");
  stop.hidden = true;
  message.focus();
}

function clear() {
  said = [];
  list.replaceChildren();
  list.hidden = true;
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
