// Routes: rows for the steps, and within them for models and channels, which are added, moved and removed; and a request to
// each step that says what was answered. The dry run beside the rows is in route_dry_run.js.
import { call } from "./api.js";
import { confirmed, readForm } from "./forms.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

const READERS = { text: (text) => text, number: Number, flag: (text) => text === "true" };

// The names of a list that are not empty.
function listNames(row, kind) {
  const entries = [...row.querySelectorAll(`[data-entries="${kind}"] [data-entry]`)];
  return entries.map((entry) => ({
    name: entry.querySelector("[data-name]").value.trim(),
    weight: Number(entry.querySelector("[data-weight]")?.value || 1),
  })).filter((share) => share.name);
}

// A step as the admin API takes it; what is empty has its default. Fields that the form does not know stay.
function readStep(row) {
  const on = [...row.querySelectorAll("[data-cause]")].filter((box) => box.checked).map((box) => box.dataset.cause);
  const step = { ...JSON.parse(row.dataset.others), on };
  step.models = listNames(row, "models").map(({ name, weight }) => (weight === 1 ? name : { model: name, weight }));
  const channels = listNames(row, "channels").map(({ name }) => name);
  if (channels.length) step.channels = channels;
  const copies = listNames(row, "shadow").map(({ name }) => name);
  if (copies.length) step.shadow = { models: copies };
  for (const input of row.querySelectorAll("[data-field]")) {
    const text = input.value.trim();
    if (text === "") continue;
    const place = input.dataset.in ? (step[input.dataset.in] ??= {}) : step;
    place[input.dataset.field] = READERS[input.dataset.kind ?? "text"](text);
  }
  return step;
}

export const listRows = (form) => [...form.querySelectorAll("[data-steps] > [data-step]")];

export const readSteps = (form) => listRows(form).map(readStep);

// The fields of the route beside its steps, as the admin API takes them.
export const readRoute = (form) => ({ ...readForm(form, false), step: readSteps(form) });

function showShares(row) {
  const entries = [...row.querySelectorAll('[data-entries="models"] [data-entry]')];
  const weights = entries.map((entry) => Number(entry.querySelector("[data-weight]").value) || 0);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  entries.forEach((entry, index) => {
    const share = total && entries.length > 1 ? `${Math.round((1000 * weights[index]) / total) / 10} %` : "";
    entry.querySelector("[data-share]").textContent = share;
    entry.querySelector("[data-entry-remove]").disabled = entries.length === 1;
  });
}

function count(form) {
  const rows = listRows(form);
  rows.forEach((row, index) => {
    row.querySelector("[data-number]").textContent = index + 1;
    row.querySelector("[data-step-move='-1']").disabled = index === 0;
    row.querySelector("[data-step-move='1']").disabled = index === rows.length - 1;
    row.querySelector("[data-step-remove]").disabled = rows.length === 1;
    row.querySelector(".causes").hidden = index === 0; // the first step is always tried
    showShares(row);
  });
}

function tellChanged(form) {
  count(form);
  form.dispatchEvent(new Event("change", { bubbles: true }));
}

function move(form, row, by, focus) {
  const other = by < 0 ? row.previousElementSibling : row.nextElementSibling;
  if (!other) return;
  if (by < 0) other.before(row);
  else other.after(row);
  tellChanged(form);
  (focus.disabled ? row.querySelector("[data-step-move]:not(:disabled)") : focus).focus();
  form.querySelector("[data-moved]").textContent = t("This is now step {number}.", { number: listRows(form).indexOf(row) + 1 });
}

export function clearStepErrors(form) {
  for (const place of form.querySelectorAll("[data-step-error]")) place.hidden = true;
  for (const input of form.querySelectorAll("[data-step] [aria-invalid]")) input.removeAttribute("aria-invalid");
}

// The input of a field of a step, such as "models[1].weight", "if.max_prompt_tokens" or "shadow.share".
function findInput(row, path) {
  const [, kind, index, part] = path.match(/^(models|channels|shadow\.models)(?:\[(\d+)\])?(?:\.(\w+))?/) ?? [];
  if (kind) {
    const entries = row.querySelectorAll(`[data-entries="${kind.split(".")[0]}"] [data-entry]`);
    return entries[index ?? 0]?.querySelector(part === "weight" ? "[data-weight]" : "[data-name]");
  }
  return row.querySelector(`[data-field="${CSS.escape(path.split(".").pop())}"]`);
}

// Says what is wrong with a step at its row; false where the fault is of no step.
export function showStepError(form, fault, focus) {
  const [, index, path] = (fault.param ?? "").match(/^step\[(\d+)\]\.?(.*)$/) ?? [];
  const row = listRows(form)[index];
  if (!row) return false;
  const place = row.querySelector("[data-step-error]");
  place.textContent = fault.message;
  place.hidden = false;
  const input = findInput(row, path);
  const fold = input?.closest("details");
  if (fold) fold.open = true;
  input?.setAttribute("aria-invalid", "true");
  if (focus) (input ?? row.querySelector("[data-name]"))?.focus();
  return true;
}

function describe(value) {
  if (Array.isArray(value)) return value.map(describe).join(", ");
  if (value === null || typeof value !== "object") return String(value);
  if ("model" in value) return `${value.model} × ${value.weight}`;
  return Object.entries(value).map(([name, part]) => `${name} ${describe(part)}`).join(", ");
}

const describeSteps = (route) => route.step.map((step, index) => `${index + 1}. ${describe(step.models)}${
  Object.entries(step).filter(([name]) => name !== "models").map(([name, value]) => `; ${name}: ${describe(value)}`).join("")}`);

// Somebody else has saved the route since this page was loaded: both are told, and nothing is lost without a word.
async function settleConflict(form) {
  const [, path] = form.dataset.call.split(" ");
  let newer = null;
  try {
    newer = await call("GET", path);
  } catch (fault) {
    if (fault.status !== 404) throw fault;
  }
  const theirs = newer ? [newer.about, ...describeSteps(newer)] : [t("The route was deleted.")];
  const ours = readRoute(form);
  const text = [
    t("The route has changed since this page was loaded."), t("Current version:"), ...theirs,
    "", t("Your version:"), ours.about, ...describeSteps(ours),
  ];
  if (await confirmed(text.filter((line) => line !== undefined).join("\n"), true, t("Replace with my version"))) {
    form.dataset.body = JSON.stringify({ version: newer?.version ?? "none" });
    form.requestSubmit();
  }
}

let dragged = null;

function listenToDrags(form, place) {
  place.addEventListener("dragstart", (event) => {
    dragged = event.target.closest?.("[data-grip]")?.closest("[data-step]") ?? null;
    if (!dragged) return;
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setDragImage(dragged, 0, 0);
  });
  place.addEventListener("dragover", (event) => {
    const over = event.target.closest("[data-step]");
    if (!dragged || !over || over === dragged || over.parentElement !== dragged.parentElement) return;
    event.preventDefault();
    const middle = over.getBoundingClientRect().top + over.offsetHeight / 2;
    if (event.clientY < middle) over.before(dragged);
    else over.after(dragged);
  });
  place.addEventListener("dragend", () => {
    if (dragged) tellChanged(form);
    dragged = null;
  });
}

function pressed(form, place, event) {
  const row = event.target.closest("[data-step]");
  const by = event.target.closest("[data-step-move]");
  const add = event.target.closest("[data-entry-add]");
  if (event.target.closest("[data-step-remove]")) {
    (row.previousElementSibling ?? row.nextElementSibling).querySelector("[data-name]").focus();
    row.remove();
  } else if (by) {
    move(form, row, Number(by.dataset.stepMove), by);
    return;
  } else if (add) {
    const list = add.parentElement.querySelector("[data-entries]");
    list.append(add.parentElement.querySelector("[data-new-entry]").content.cloneNode(true));
    list.lastElementChild.querySelector("[data-name]").focus();
  } else if (event.target.closest("[data-entry-remove]")) {
    const entry = event.target.closest("[data-entry]");
    entry.closest("[data-entries]").parentElement.querySelector("[data-entry-add]").focus();
    entry.remove();
  } else return;
  tellChanged(form);
}

for (const form of document.querySelectorAll("[data-route]")) {
  const place = form.querySelector("[data-steps]");
  form.querySelector("[data-step-add]").addEventListener("click", () => {
    place.append(form.querySelector("[data-new-step]").content.cloneNode(true));
    tellChanged(form);
    place.lastElementChild.querySelector("[data-name]").focus();
  });
  place.addEventListener("click", (event) => pressed(form, place, event));
  place.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const row = event.target.closest("[data-step]");
    if (!by || !event.altKey || event.ctrlKey || event.metaKey || !row) return;
    event.preventDefault();
    move(form, row, by, event.target);
  });
  place.addEventListener("input", (event) => showShares(event.target.closest("[data-step]")));
  form.addEventListener("submit", () => {
    clearStepErrors(form);
    form.elements.step.value = JSON.stringify(readSteps(form));
  });
  form.addEventListener("fault", (event) => {
    if (event.detail.status === 409 && event.detail.param === "version" && form.dataset.then === "reload") {
      settleConflict(form).catch((fault) => toast(fault.message, "bad"));
    } else if (showStepError(form, event.detail, true)) form.querySelector("[data-error-of=step]").hidden = true;
  });
  listenToDrags(form, place);
  count(form);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-route-test]");
  if (!button) return;
  button.disabled = true;
  try {
    const { data } = await call("POST", `/admin/v1/routes/${button.dataset.routeTest}/test`);
    document.getElementById("test-results").replaceChildren(...data.map((one) => {
      const said = one.ok ? t("{model} answered in {ms} ms.", one) : t("Test failed: {error}", one);
      return Object.assign(document.createElement("p"), {
        className: `notice ${one.ok ? "good" : "bad"}`,
        textContent: `${t("Step {step}", one)}, ${one.channel ?? "–"}: ${said}`,
      });
    }));
  } catch (fault) {
    toast(fault.message, "bad");
  } finally {
    button.disabled = false;
  }
});
