// A word at the edge of the page, which goes away by itself. With an undo it has a button, and stays longer.
import { call } from "./api.js";
import { t } from "./language.js";
import { isUnchanged } from "./unchanged.js";

const LATER = "console-toast";
const SHORT_MS = 3000;
const LONG_MS = 15_000;

export function toast(text, tone = "good", undo = null) {
  const place = document.getElementById("toasts");
  const word = document.createElement("p");
  word.className = `toast ${tone}`;
  word.textContent = text;
  if (undo) word.append(" ", makeUndo(undo));
  place.append(word);
  setTimeout(() => removeAtRest(word), undo ? LONG_MS : tone === "bad" ? 8000 : SHORT_MS);
}

// Nothing is taken away from under somebody's hand.
function removeAtRest(word) {
  if (word.matches(":hover, :focus-within")) setTimeout(() => removeAtRest(word), SHORT_MS);
  else word.remove();
}

function makeUndo(undo) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = t("Undo");
  button.addEventListener("click", async () => {
    button.disabled = true;
    await undo();
    button.parentElement.remove();
  }, { once: true });
  return button;
}

// For the next page, or this one after it is loaded again. `calls` undo what was done: "PATCH /path", a body, and the fields
// that were set, if the object can be asked for them: what somebody else has changed since is left alone. A fourth item is
// where the object is found, unless that is the path.
export function tellLater(text, calls = []) {
  sessionStorage.setItem(LATER, JSON.stringify({ text, calls, at: Date.now() }));
}

async function undoEach(calls) {
  const problems = [];
  for (const [path, body, fields, place] of calls) {
    try {
      if (!fields || (await isUnchanged(place ?? path.split(" ")[1], fields))) await call(...path.split(" "), body);
      else problems.push(t("Someone else has changed this in the meantime, so your change was not undone."));
    } catch (fault) {
      problems.push(fault.message);
    }
  }
  return [...new Set(problems)].join(" ") || t("Undone");
}

export function showLater() {
  const { text, calls, at } = JSON.parse(sessionStorage.getItem(LATER) ?? "{}");
  sessionStorage.removeItem(LATER);
  if (!text) return;
  const undoable = calls?.length && Date.now() - at < LONG_MS; // the page may have been loaded much later
  toast(text, "good", !undoable ? null : async () => {
    tellLater(await undoEach(calls));
    location.reload();
  });
}
