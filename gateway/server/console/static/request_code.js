// A request to take away: as curl, Python or JavaScript, or into the playground. Its prompt is known once somebody has
// asked for the kept bodies (kept_body.js), which is on record; until then a sample stands for it.
import { WRITERS } from "./code.js";
import { keepConversation, keepDraft } from "./conversation.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

const SYSTEM_ROLES = ["system", "developer"];
const MAX_SHOWN_CHARS = 400;
const keptRequests = new Map(); // by the id of the request: its kept body

document.addEventListener("bodyshown", ({ detail }) => {
  const asked = detail.bodies.find((body) => body.kind === "request");
  if (!asked) return;
  keptRequests.set(detail.id, asked);
  showParameters(detail.id);
});

// What was sent as the body; null if that is not known, or not whole.
function readBody(id) {
  const asked = keptRequests.get(id);
  if (!asked || asked.cut) return null;
  try {
    const body = JSON.parse(asked.content);
    return body !== null && typeof body === "object" && !Array.isArray(body) ? body : null;
  } catch {
    return null;
  }
}

// What the request asked beside its prompt.
function showParameters(id) {
  const place = [...document.querySelectorAll("[data-parameters]")].find((one) => one.dataset.parameters === id);
  const body = place && readBody(id);
  if (!body) return;
  const prompt = new Set([...place.dataset.prompt.split(" "), "model"]);
  const facts = Object.entries(body).filter(([name]) => !prompt.has(name)).flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const code = term.appendChild(document.createElement("code"));
    code.textContent = name;
    const text = document.createElement("dd");
    text.className = "inert-text";
    text.textContent = (typeof value === "string" ? value : JSON.stringify(value)).slice(0, MAX_SHOWN_CHARS);
    return [term, text];
  });
  place.querySelector("dl").replaceChildren(...facts);
  place.hidden = facts.length === 0;
}

// The playground begins with the conversation, and with the last question in its field.
function takeAlong({ play, owner }) {
  const asked = keptRequests.get(play);
  if (!asked) return;
  const said = asked.messages.filter(({ text }) => text);
  const system = said.filter(({ role }) => SYSTEM_ROLES.includes(role)).map(({ text }) => text).join("\n\n");
  const turns = said.filter(({ role }) => !SYSTEM_ROLES.includes(role) && role !== "tool").map(({ role, text }) => (
    role === "user" ? { role, text, files: [] } : { role: "assistant", answers: [{ who: t("Assistant"), text, calls: [] }] }));
  const message = turns.at(-1)?.role === "user" ? turns.pop().text : "";
  keepConversation(owner, turns);
  keepDraft(owner, { system, message });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-play]");
  if (link) takeAlong(link.dataset);
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy-as]");
  if (!button) return;
  const { id, url, body: sample } = JSON.parse(button.closest("[data-code]").dataset.code);
  const body = readBody(id);
  try {
    await navigator.clipboard.writeText(WRITERS[button.dataset.copyAs](url, body ?? sample));
    toast(body
      ? t("Copied with the kept prompt. Set GATEWAY_KEY to an API key.")
      : t("Copied with a sample prompt. Set GATEWAY_KEY to an API key."));
  } catch {
    toast(t("This browser cannot copy here. Select the text and copy it manually."), "bad");
  }
});
