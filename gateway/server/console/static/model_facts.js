// What is known of a model that requests can name: its description and options in the admin API.
import { call } from "./api.js";

const facts = new Map(); // by the name of a model: a promise of what is known; null if that is nothing

// Looked up once. A look-up that failed is tried again when the model is next chosen.
export function findFacts(name) {
  if (!name) return Promise.resolve(null);
  if (!facts.has(name)) {
    const answer = call("GET", `/admin/v1/models?name=${encodeURIComponent(name)}`).then(({ data }) => data[0] ?? null);
    facts.set(name, answer.catch(() => {
      facts.delete(name);
      return null;
    }));
  }
  return facts.get(name);
}

// Puts a reason below a field, in words; without one it is taken away.
export function showReason(field, text) {
  const place = field.closest(".field");
  let reason = place.querySelector("[data-reason]");
  if (!reason) {
    if (!text) return;
    reason = Object.assign(document.createElement("small"), { id: `${field.id}-reason`, className: "hint" });
    reason.dataset.reason = "";
    field.setAttribute("aria-describedby", `${field.getAttribute("aria-describedby") ?? ""} ${reason.id}`.trim());
    place.insertBefore(reason, place.querySelector(".error"));
  }
  reason.textContent = text;
  reason.hidden = !text;
}

// Disables a field that the model does not have, with the reason; enables it without one.
export function setReason(field, text) {
  field.disabled = Boolean(text);
  showReason(field, text);
}
