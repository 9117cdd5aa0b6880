// Fields of a passphrase: it can be looked at, and how long a new one is is told as it is typed.
import { n, t } from "./language.js";
for (const place of document.querySelectorAll("[data-passphrase]")) {
  const field = place.querySelector("input");
  const button = place.querySelector("[data-reveal]");
  const label = place.querySelector("label").textContent;
  button.addEventListener("click", () => {
    const shown = field.type === "password";
    field.type = shown ? "text" : "password";
    button.textContent = shown ? t("Hide") : t("Show");
    button.setAttribute("aria-pressed", String(shown));
    button.setAttribute("aria-label", shown ? t("Hide: {label}", { label }) : t("Show: {label}", { label }));
    field.focus();
  });
  field.form.addEventListener("submit", () => {
    if (field.type === "text") button.click(); // so that the browser knows it for what it is, and nobody reads it
  });
  if (place.dataset.shortest) tellLength(place, field, Number(place.dataset.shortest));
}

function tellLength(place, field, shortest) {
  const hint = place.querySelector("[data-length]");
  const advice = hint.textContent;
  const status = place.querySelector("[data-length-status]");
  const bar = place.querySelector("progress");
  field.addEventListener("input", () => {
    const length = [...field.value].length;
    const missing = shortest - length;
    bar.value = Math.min(length, shortest);
    bar.classList.toggle("enough", missing <= 0);
    hint.textContent = !length ? advice : missing > 0 ? n("{count} more character", "{count} more characters", missing) : t("Long enough. Longer is better.");
    const word = length && missing <= 0 ? t("Long enough") : "";
    if (status.textContent !== word) status.textContent = word;
  });
}

// Names are written small, so that a phone's capital at the beginning keeps nobody out.
for (const field of document.querySelectorAll("[data-small]")) {
  field.addEventListener("change", () => {
    field.value = field.value.trim().toLowerCase();
  });
}
