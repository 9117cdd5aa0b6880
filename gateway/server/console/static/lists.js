// Lists: rows are selected, and an action is done with each of them after one question.
//
//   <input type="checkbox" data-check="3" data-name="laptop">: the id is quoted for an address
//   <button data-each="PATCH /admin/v1/keys/{id}" data-body='{"status": "disabled"}' data-text="What comes of it"
//     data-undo='{"status": "active"}'>: the body that undoes it, for rows that were in that state
//   <form data-each="PATCH /admin/v1/keys/{id}" data-text="…">: its fields are the body; it stands in a dialog.
//
// Rows are changed one after another. What failed is told by name, with the reason; what was done can be undone if the
// action has an undo.
import { Fault, call } from "./api.js";
import { confirmed, readForm } from "./forms.js";
import { n, t } from "./language.js";
import { tellLater, toast } from "./toast.js";
import { isUnchanged } from "./unchanged.js";

const NAMES_SHOWN = 5;
const bar = document.querySelector("[data-selection]");
const all = document.querySelector("[data-check-all]");
const boxes = [...document.querySelectorAll("[data-check]")];
let latest = -1;

const listSelected = () => boxes.filter((box) => box.checked);

function tellSelected() {
  const count = listSelected().length;
  bar.hidden = !count;
  bar.querySelector("[data-selected]").textContent = n("{count} selected", "{count} selected", count);
  all.checked = count > 0 && count === boxes.length;
  all.indeterminate = count > 0 && count < boxes.length;
  all.disabled = !boxes.length;
  for (const box of boxes) box.closest("tr").toggleAttribute("data-selected-row", box.checked);
}

function select(chosen) {
  for (const box of boxes) box.checked = chosen;
  tellSelected();
}

// Whoever holds Shift selects every row between the last one and this one.
function selectRange(box) {
  const index = boxes.indexOf(box);
  if (latest >= 0) for (const one of boxes.slice(Math.min(latest, index), Math.max(latest, index) + 1)) one.checked = box.checked;
  latest = index;
}

function listNames(rows) {
  const names = rows.slice(0, NAMES_SHOWN).map((row) => row.dataset.name).join(", ");
  return rows.length > NAMES_SHOWN ? t("{names} and {count} more", { names, count: rows.length - NAMES_SHOWN }) : names;
}

const fill = (path, row) => path.replace("{id}", () => row.dataset.check);

// Does it with one row after another; returns those that were done, those of them that it changed, and the reasons for the others.
async function doEach(rows, path, body, { undo, tell, stop }) {
  const [method, where] = path.split(" ");
  const done = [];
  const undoable = [];
  const failed = [];
  for (const row of rows) {
    if (stop.pressed) break;
    try {
      const changes = undo && (await isUnchanged(fill(where, row), undo)); // the state on the page may be an old one
      const answer = await call(method, fill(where, row), body);
      if (answer?.ok === false) throw new Fault(200, { message: answer.error }); // a test
      done.push(row);
      if (changes) undoable.push(row);
    } catch (fault) {
      failed.push([row.dataset.name, fault.message]);
      if (!fault.status || fault.status === 401) break; // no other row would fare better
    }
    tell(done.length + failed.length);
  }
  return { done, undoable, failed };
}

function makeProgress(label, count, stop) {
  const dialog = Object.assign(document.createElement("dialog"), { className: "question" });
  const text = document.createElement("p");
  const bar_ = Object.assign(document.createElement("progress"), { max: count, value: 0 });
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: t("Stop") });
  text.setAttribute("role", "status");
  text.textContent = label;
  bar_.setAttribute("aria-label", label);
  button.addEventListener("click", () => { stop.pressed = true; });
  dialog.setAttribute("aria-label", label);
  dialog.addEventListener("cancel", (event) => { event.preventDefault(); stop.pressed = true; });
  dialog.append(text, bar_, button);
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, tell: (number) => { bar_.value = number; } };
}

function showFailures(text, failed) {
  const dialog = Object.assign(document.createElement("dialog"), { className: "question" });
  const words = Object.assign(document.createElement("p"), { textContent: text });
  const list = document.createElement("ul");
  const form = Object.assign(document.createElement("form"), { method: "dialog" });
  form.className = "row end";
  for (const [name, message] of failed) list.append(Object.assign(document.createElement("li"), { textContent: `${name}: ${message}`, className: "inert-text" }));
  form.append(Object.assign(document.createElement("button"), { className: "primary", textContent: t("Close") }));
  dialog.setAttribute("aria-label", t("Some actions failed"));
  dialog.append(words, list, form);
  dialog.addEventListener("close", () => location.reload());
  document.body.append(dialog);
  dialog.showModal();
}

async function act(element, label, body) {
  const rows = listSelected();
  const question = [n("{action}: {count} row", "{action}: {count} rows", rows.length, { action: label }), listNames(rows), element.dataset.text];
  const danger = element.dataset.each.startsWith("DELETE");
  if (!rows.length || !(await confirmed(question.filter(Boolean).join("\n\n"), danger, label))) return;
  const stop = { pressed: false };
  const { dialog, tell } = makeProgress(label, rows.length, stop);
  const undo = element.dataset.undo ? JSON.parse(element.dataset.undo) : null;
  const { done, undoable, failed } = await doEach(rows, element.dataset.each, body, { undo, tell, stop });
  dialog.remove();
  const text = done.length === rows.length
    ? n("{action}: {count} row done", "{action}: {count} rows done", done.length, { action: label })
    : t("{action}: {done} of {count} rows done", { action: label, done: done.length, count: rows.length });
  tellLater(text, undoable.map((row) => [fill(element.dataset.each, row), undo, body]));
  if (failed.length) showFailures(text, failed);
  else location.reload();
}

document.addEventListener("click", (event) => {
  const target = event.target;
  if (target.matches("[data-check]")) {
    if (event.shiftKey) selectRange(target);
    else latest = boxes.indexOf(target);
    tellSelected();
  } else if (target.matches("[data-check-all]")) select(target.checked);
  else if (target.closest("[data-check-page]")) select(true);
  else if (target.closest("[data-check-none]")) {
    select(false);
    all.focus();
  } else {
    const button = target.closest("button[data-each]");
    if (button) act(button, button.textContent.trim(), JSON.parse(button.dataset.body));
  }
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.each) return;
  event.preventDefault();
  const body = readForm(form, false);
  form.closest("dialog").close();
  if (form.dataset.empty !== undefined) for (const field of form.elements) if (field.name) body[field.name] ??= null;
  act(form, form.dataset.label, body).catch((fault) => toast(fault.message, "bad"));
});

if (bar && all) tellSelected(); // a browser may have kept what was selected
