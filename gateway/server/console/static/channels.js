// Channels: the form follows its provider, a test says what was answered, keys are edited in a dialog, and the order is changed
// by dragging or by arrows.
import "./aliases.js";
import { call } from "./api.js";
import { n, t } from "./language.js";
import { toast } from "./toast.js";
import { hasInput } from "./touched.js";

const provider = document.getElementById("ch-provider");
if (provider) {
  const url = document.getElementById("ch-url");
  const sync = document.getElementById("ch-sync");
  const follow = () => {
    const chosen = provider.selectedOptions[0];
    url.placeholder = chosen.dataset.baseUrl || "https://…";
    url.required = chosen.dataset.baseUrl === "";
    sync.disabled = !chosen.dataset.lists;
    if (sync.disabled) sync.checked = false;
  };
  provider.addEventListener("change", follow);
  follow();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-edit-key]");
  if (!button) return;
  const dialog = document.getElementById("edit-key");
  const form = dialog.querySelector("form");
  form.dataset.call = `PATCH ${button.dataset.editKey}`;
  form.elements.name.defaultValue = button.dataset.keyName;
  form.reset();
  dialog.showModal();
});

// A channel that drains: the page is loaded again when its last request has ended, or somebody has enabled it.
const draining = document.querySelector("[data-draining]");
const DRAIN_POLL_MS = 2000;
async function followDraining() {
  try {
    const channel = await call("GET", draining.dataset.draining);
    if (channel.health !== "draining" && !hasInput()) location.reload();
  } catch {
    return; // the page says what it knew
  }
  setTimeout(followDraining, DRAIN_POLL_MS);
}
if (draining && !new URLSearchParams(location.search).has("node")) setTimeout(followDraining, DRAIN_POLL_MS);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-test]");
  if (!button) return;
  button.disabled = true;
  try {
    const asks = button.dataset.request !== undefined;
    const result = await call("POST", `/admin/v1/channels/${button.dataset.test}/test${asks ? "?request=true" : ""}`);
    const sent = result.request;
    const said = sent?.ok
      ? t("{model} answered in {ms} ms.", sent)
      : result.ok && !sent
      ? result.models === null ? t("This provider has no model list; nothing was tested.") : n("Connected. {count} model found.", "Connected. {count} models found.", result.models)
      : t("Test failed: {error}", { error: sent?.error ?? result.error });
    const place = document.getElementById("test-result");
    if (place) {
      place.className = `notice ${result.ok ? "good" : "bad"}`;
      place.textContent = said;
    } else toast(`${result.name}: ${said}`, result.ok ? "good" : "bad");
  } catch (fault) {
    toast(fault.message, "bad");
  } finally {
    button.disabled = false;
  }
});

const body = document.querySelector("#channels tbody");

let keeping = Promise.resolve();

function keepOrder(focus) {
  keeping = keeping.then(() => sendOrder(focus)); // one after another: the last word is the last to arrive
}

async function sendOrder(focus) {
  const names = [...body.querySelectorAll("tr[data-name]")].map((row) => row.dataset.name); // also those that stay
  try {
    await call("POST", "/admin/v1/channels/order", { names });
    toast(t("Order saved"));
    focus?.focus();
  } catch (fault) {
    toast(fault.message, "bad");
    setTimeout(() => location.reload(), 2000);
  }
}

body?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-move]");
  if (!button) return;
  const row = button.closest("tr");
  const other = button.dataset.move === "-1" ? row.previousElementSibling : row.nextElementSibling;
  if (!other) return;
  if (button.dataset.move === "-1") other.before(row);
  else other.after(row);
  keepOrder(button);
});

let dragged = null;
body?.addEventListener("dragstart", (event) => {
  dragged = event.target.closest("tr[draggable]");
  event.dataTransfer.effectAllowed = "move";
});
body?.addEventListener("dragover", (event) => {
  const over = event.target.closest("tr[data-name]");
  if (!dragged || !over || over === dragged) return;
  event.preventDefault();
  const middle = over.getBoundingClientRect().top + over.offsetHeight / 2;
  if (event.clientY < middle) over.before(dragged);
  else over.after(dragged);
});
body?.addEventListener("dragend", () => {
  if (dragged) keepOrder();
  dragged = null;
});
