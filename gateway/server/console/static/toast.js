// A word at the edge of the page, which goes away by itself. With an undo it has a button, and stays longer.
import { t } from "./language.js";

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
  }, { once: true });
  return button;
}

// For the next page, or this one after it is loaded again. `calls` undo what was done: pairs of "PATCH /path" and a body.
export function tellLater(text, calls = []) {
  sessionStorage.setItem(LATER, JSON.stringify({ text, calls }));
}

export function showLater(call) {
  const { text, calls } = JSON.parse(sessionStorage.getItem(LATER) ?? "{}");
  sessionStorage.removeItem(LATER);
  if (!text) return;
  toast(text, "good", !calls?.length ? null : async () => {
    try {
      for (const [path, body] of calls) await call(...path.split(" "), body);
      tellLater(t("Undone"));
    } catch (fault) {
      tellLater(fault.message);
    }
    location.reload();
  });
}
