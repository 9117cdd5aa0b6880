// The page of settings: what was changed is saved together, all or none, and can be undone.
import { call } from "./api.js";
import { clearErrors, readValue, showFault } from "./forms.js";
import { n, t } from "./language.js";
import { tellLater } from "./toast.js";
import { isTouched } from "./touched.js";

const form = document.getElementById("settings");
const bar = document.getElementById("save-bar");
const resets = new Set();
let leaving = false;

function read(field) {
  return "text" in field.dataset ? field.value.trim() : readValue(field);
}

// The new values by path; null takes a value back to the file's or the default.
function listChanges() {
  const changes = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled) continue;
    if (resets.has(field.name)) changes[field.name] = null;
    else if (isTouched(field)) changes[field.name] = read(field);
  }
  return changes;
}

function showChanges() {
  const count = Object.keys(listChanges()).length;
  bar.hidden = count === 0;
  document.getElementById("save-count").textContent = n("{count} unsaved change", "{count} unsaved changes", count);
}

function write(field, value) {
  if (field.type === "checkbox") field.checked = value;
  else field.value = Array.isArray(value) ? value.join("\n") : value ?? "";
}

form.addEventListener("input", (event) => {
  resets.delete(event.target.name);
  showChanges();
});

form.addEventListener("click", (event) => {
  const button = event.target.closest("[data-reset]");
  if (!button) return;
  const field = form.elements.namedItem(button.dataset.reset);
  write(field, JSON.parse(button.dataset.default));
  resets.add(field.name);
  showChanges();
  field.focus();
});

// What each path had before: as it was shown, and as it was stored, null if nothing was.
function listFormerValues(changes) {
  const former = { shown: {}, stored: {} };
  for (const path of Object.keys(changes)) {
    const isStored = Boolean(form.querySelector(`[data-reset="${CSS.escape(path)}"]`));
    former.shown[path] = readFormer(form.elements.namedItem(path));
    former.stored[path] = isStored ? former.shown[path] : null;
  }
  return former;
}

// The values of an answer, by path.
function listValues({ sections }) {
  return Object.fromEntries(Object.entries(sections).flatMap(([section, settings]) => (
    Object.entries(settings).map(([key, { value }]) => [`${section}.${key}`, value]))));
}

function readFormer(field) {
  const copy = field.cloneNode(true);
  if (field.type === "checkbox") copy.checked = field.defaultChecked;
  else if (field.options) for (const option of copy.options) option.selected = option.defaultSelected;
  else copy.value = field.defaultValue;
  return read(copy);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const changes = listChanges();
  if (!Object.keys(changes).length) return;
  const save = document.getElementById("save");
  clearErrors(form);
  save.disabled = true;
  save.setAttribute("aria-busy", "true");
  try {
    const former = listFormerValues(changes);
    const answer = await call("PATCH", "/admin/v1/settings", { settings: changes, former: former.shown });
    leaving = true;
    const undo = { settings: former.stored, former: listValues(answer) };
    tellLater(t("Settings saved"), [["PATCH /admin/v1/settings", undo]]);
    location.reload();
  } catch (fault) {
    showFault(form, fault);
    save.disabled = false;
  } finally {
    save.removeAttribute("aria-busy");
  }
});

document.getElementById("discard").addEventListener("click", () => {
  form.reset();
  resets.clear();
  clearErrors(form);
  showChanges();
});

addEventListener("beforeunload", (event) => {
  if (!leaving && !bar.hidden) event.preventDefault();
});
