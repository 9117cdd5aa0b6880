// Forms and buttons that call the admin API.
//
//   <form data-call="POST /admin/v1/keys" data-then="/console/keys/{id}">
//     its fields become the body; data-as="number|list|lines|json|bool|time|factors|pairs" says what of. In a PATCH those do that were
//     touched, and an empty one takes a setting back (null; with data-blank="omit" it stays); elsewhere all that are not
//     empty. data-then: where to go afterwards ("reload": here again; {names} are of the answer, whose "continue_at" goes first); without it a "done"
//     event carries the answer. A {name} in data-call is a field's value. Fields a.b and a.c become the object a, null if the
//     first is empty.
//     data-once: a credit, which has a reference of its own; a second try is not a second one.
//   <button data-call="DELETE /admin/v1/keys/3" data-confirm="…" data-body='{"a": 1}' data-then="reload">
//     data-undo: the body of the same call that undoes it; the page afterwards says data-done, and offers that if the object
//     was in that state before. data-found: the path of the object, as in unchanged.js.
//   A listener of "read" may set data-former, fields in JSON that the object must still have: else nothing is sent.
//
// What is wrong with a field is said beside it (data-error-of), anything else in data-error; a "fault" event carries it.
import { call } from "./api.js";
import { t } from "./language.js";
import { tellLater, toast } from "./toast.js";
import { isTouched } from "./touched.js";
import { isUnchanged } from "./unchanged.js";

export function readValue(field) {
  const text = field.type === "password" ? field.value : field.value.trim();
  switch (field.dataset.as ?? (field.type === "number" ? "number" : "")) {
    case "number":
      return text === "" ? null : Number(text);
    case "list":
      return text === "" ? [] : text.split(/[\n,]+/).map((part) => part.trim()).filter(Boolean);
    case "lines": // whose values may have commas
      return text.split("\n").map((part) => part.trim()).filter(Boolean);
    case "factors": // flex=0.5, priority=2
      return Object.fromEntries(text.split(",").filter((part) => part.trim()).map((part) => {
        const [name, factor = ""] = part.split("=").map((one) => one.trim());
        return [name, factor === "" ? null : Number(factor)];
      }));
    case "pairs": // team=web, env=test
      return Object.fromEntries(text.split(",").filter((part) => part.trim()).map((part) => {
        const [name, ...rest] = part.split("=").map((one) => one.trim());
        return [name, rest.join("=")];
      }));
    case "json":
      return text === "" ? null : JSON.parse(text);
    case "bool":
      return field.type === "checkbox" ? field.checked : text === "true";
    case "time":
      return text === "" ? null : new Date(text).toISOString().replace(/\.\d+Z$/, "Z");
    default:
      return field.type === "checkbox" ? field.checked : text === "" ? null : text;
  }
}

function readObject(form, name) {
  const fields = [...form.elements].filter((field) => field.name.startsWith(`${name}.`));
  if (readValue(fields[0]) === null) return null;
  const values = fields.map((field) => [field.name.slice(name.length + 1), readValue(field)]);
  return Object.fromEntries(values.filter(([, value]) => value !== null));
}

// `change`: what was not touched is not told, for somebody else may have changed it since the page was written.
export function readForm(form, change) {
  const body = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || field.closest("[hidden]") || (field.type === "radio" && !field.checked)) continue;
    if (field.dataset.blank === "omit" && field.value.trim() === "") continue;
    if (change && !isTouched(field)) continue;
    const [name, ...inner] = field.name.split(".");
    const value = inner.length ? readObject(form, name) : readValue(field);
    if (value !== null || change) body[name] = value;
  }
  return body;
}

export function clearErrors(form) {
  for (const place of form.querySelectorAll("[data-error-of], [data-error]")) {
    place.hidden = true;
    place.textContent = "";
  }
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

export function showFault(form, fault) {
  const places = [...form.querySelectorAll("[data-error-of]")];
  const find = (name) => places.find((place) => name && place.dataset.errorOf === name);
  const place = find(fault.param) ?? find((fault.param ?? "").split(/[.[]/)[0]);
  const name = place?.dataset.errorOf;
  const field = name && form.elements.namedItem(name);
  const general = form.querySelector("[data-error]");
  const where = place && !place.closest("[hidden]:not(.error)") ? place : general;
  if (!where) {
    toast(fault.message, "bad");
    return;
  }
  const fold = where.closest("details");
  if (fold) fold.open = true;
  where.textContent = fault.message;
  where.hidden = false;
  where.setAttribute("role", "alert");
  if (field?.setAttribute && where === place) {
    field.setAttribute("aria-invalid", "true");
    field.focus();
  }
}

function fill(text, answer) {
  return text.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(answer?.[name] ?? ""));
}

function goOn(element, answer) {
  const then = element.dataset.then;
  if (then && answer?.continue_at) location.assign(answer.continue_at);
  else if (then === "reload") location.reload();
  else if (then) location.assign(fill(then, answer));
  element.dispatchEvent(new CustomEvent("done", { detail: answer, bubbles: true }));
}

async function perform(element, path, body) {
  const [method, where] = path.split(" ");
  const button = element.matches("form") ? element.querySelector("[type=submit]") : element;
  let leaving = false;
  button?.setAttribute("aria-busy", "true");
  if (button) button.disabled = true;
  try {
    const undo = element.dataset.undo && JSON.parse(element.dataset.undo);
    const { found } = element.dataset;
    const changes = undo && (!found || (await isUnchanged(found, undo)));
    const answer = await call(method, where, body);
    leaving = Boolean(element.dataset.then);
    if (undo) tellLater(element.dataset.done, changes ? [[path, undo, found ? body : null, found]] : []);
    goOn(element, answer);
  } finally {
    if (button) button.disabled = leaving; // until the next page is there: a second press would do it a second time
    button?.removeAttribute("aria-busy");
  }
}

function report(element, fault) {
  element.dispatchEvent(new CustomEvent("fault", { detail: fault, bubbles: true }));
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.call) return;
  event.preventDefault();
  clearErrors(form);
  try {
    const extra = form.dataset.body ? JSON.parse(form.dataset.body) : {};
    const body = { ...extra, ...readForm(form, form.dataset.call.startsWith("PATCH")) };
    form.dispatchEvent(new CustomEvent("read", { detail: body })); // a script may add what is in no single field
    if (form.dataset.once !== undefined) body.reference ??= form.dataset.reference ??= makeReference();
    const path = fill(form.dataset.call, body);
    for (const [, name] of form.dataset.call.matchAll(/\{(\w+)\}/g)) delete body[name]; // what is said in the path
    await checkFormer(form, path);
    await perform(form, path, body);
  } catch (fault) {
    showFault(form, fault);
    report(form, fault);
  }
});

async function checkFormer(form, path) {
  const { former } = form.dataset;
  if (!former || (await isUnchanged(path.split(" ")[1], JSON.parse(former)))) return;
  const [param] = Object.keys(JSON.parse(former));
  throw Object.assign(new Error(t("Someone else has changed this in the meantime. Reload the page to see the changes.")), { param });
}

// Money: what was sent and not heard of again is the same the second time, until something of it is changed.
function makeReference() {
  return `console-${[...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (form?.dataset.once !== undefined) delete form.dataset.reference;
});

// A question that is asked in the page, so that it looks and is worked like the rest of it.
// "label" is what the button says that was pressed; "typed" is a name that has to be typed first, if there is one.
export function confirmed(text, danger, label, typed) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    dialog.className = "question";
    const words = document.createElement("p");
    words.className = "inert-text";
    words.textContent = text;
    const form = document.createElement("form");
    form.method = "dialog";
    form.className = "row end";
    for (const [caption, value, kind] of [[t("Cancel"), "no", "quiet"], [label, "yes", danger ? "danger" : "primary"]]) {
      const button = document.createElement("button");
      button.value = value;
      button.className = kind;
      button.textContent = caption;
      form.append(button);
    }
    dialog.setAttribute("aria-label", t("Please confirm"));
    dialog.append(words);
    if (typed) dialog.append(askFor(typed, form.lastElementChild));
    dialog.append(form);
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// A field for a name; the button can be pressed when the name is there.
function askFor(name, button) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  label.textContent = t("Type {name} to confirm", { name });
  input.autocomplete = "off";
  input.addEventListener("input", () => { button.disabled = input.value.trim() !== name; });
  button.disabled = true;
  label.append(input);
  return label;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-call]");
  if (!button) return;
  const danger = button.dataset.call.startsWith("DELETE");
  if (button.dataset.confirm && !(await confirmed(button.dataset.confirm, danger, button.textContent.trim(), button.dataset.type))) return;
  try {
    await perform(button, button.dataset.call, button.dataset.body ? JSON.parse(button.dataset.body) : {});
  } catch (fault) {
    toast(fault.message, "bad");
    report(button, fault);
  }
});
