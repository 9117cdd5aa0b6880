// Fields of a passphrase: it can be looked at, and how long a new one is is told as it is typed.
for (const place of document.querySelectorAll("[data-passphrase]")) {
  const field = place.querySelector("input");
  const button = place.querySelector("[data-reveal]");
  const label = place.querySelector("label").textContent.toLowerCase();
  button.addEventListener("click", () => {
    const shown = field.type === "password";
    field.type = shown ? "text" : "password";
    button.textContent = shown ? "Hide" : "Show";
    button.setAttribute("aria-pressed", String(shown));
    button.setAttribute("aria-label", `${shown ? "Hide" : "Show"} the ${label}`);
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
    hint.textContent = !length ? advice : missing > 0 ? `${missing} more character${missing === 1 ? "" : "s"}` : "Long enough. Longer is better still.";
    const word = length && missing <= 0 ? "Long enough" : "";
    if (status.textContent !== word) status.textContent = word;
  });
}

// Names are written small, so that a phone's capital at the beginning keeps nobody out.
for (const field of document.querySelectorAll("[data-small]")) {
  field.addEventListener("change", () => {
    field.value = field.value.trim().toLowerCase();
  });
}
