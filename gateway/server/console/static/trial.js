// The chat on the page that shows how to connect: one message, one answer.
import { clearFaults } from "./faults.js";
import { showFault } from "./forms.js";
import { t } from "./language.js";
import { watchModel } from "./model.js";
import { tellAnswer } from "./receipt.js";
import { newTrace, talk } from "./talk.js";

const form = document.getElementById("trial");
const place = document.getElementById("trial-answer");
const text = document.getElementById("trial-text");
const receipt = document.getElementById("trial-receipt");
const send = document.getElementById("trial-send");
const stop = document.getElementById("trial-stop");
const model = watchModel(form);
let leave = null;

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (leave) return;
  clearFaults(form);
  leave = new AbortController();
  const key = form.elements.key.value;
  const trace = newTrace();
  const body = { model: model.read(), messages: [{ role: "user", content: form.elements.messages.value }] };
  begin();
  let how = "";
  try {
    await talk(body, key, { text: (piece) => text.append(piece) }, trace, leave.signal);
    if (!text.textContent) how = t("(Empty answer)");
  } catch (fault) {
    if (fault.name === "AbortError") how = t("stopped");
    else showFault(form, fault);
    place.hidden = !text.textContent;
  }
  end();
  if (!place.hidden) await tellAnswer(receipt, trace, key, how);
});

stop.addEventListener("click", () => leave?.abort());

function begin() {
  place.hidden = false;
  text.textContent = "";
  receipt.textContent = "";
  text.setAttribute("aria-busy", "true");
  send.setAttribute("aria-busy", "true");
  send.disabled = true;
  stop.hidden = false;
}

function end() {
  leave = null;
  text.removeAttribute("aria-busy");
  send.removeAttribute("aria-busy");
  send.disabled = false;
  stop.hidden = true;
}
