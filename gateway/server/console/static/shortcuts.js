// Keys of every page: Ctrl or Cmd and K opens the command palette, "/" goes to the search, "?" shows this list.
import { t } from "./language.js";

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
const paletteKeys = isMac ? "⌘ K" : "Ctrl K";

async function openPalette() {
  const palette = await import("./palette.js");
  palette.openPalette();
}

function isWriting(target) {
  return target.isContentEditable || target.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=button])");
}

function goToSearch() {
  const field = document.querySelector("main input[type=search]");
  if (!field?.checkVisibility()) return false;
  field.focus();
  field.select();
  return true;
}

function showKeys() {
  const dialog = Object.assign(document.createElement("dialog"), { className: "question" });
  const title = Object.assign(document.createElement("h2"), { textContent: t("Keyboard shortcuts") });
  const table = document.createElement("dl");
  const form = Object.assign(document.createElement("form"), { method: "dialog" });
  table.className = "facts";
  form.className = "row end";
  const rows = [
    [paletteKeys, t("Go to a page or an object, or run an action")],
    ["/", t("Search this page")],
    ["?", t("Show keyboard shortcuts")],
    ["Esc", t("Close a dialog")],
  ];
  for (const [keys, text] of rows) {
    const term = document.createElement("dt");
    term.append(Object.assign(document.createElement("kbd"), { textContent: keys }));
    table.append(term, Object.assign(document.createElement("dd"), { textContent: text }));
  }
  form.append(Object.assign(document.createElement("button"), { className: "primary", textContent: t("Close") }));
  dialog.setAttribute("aria-label", t("Keyboard shortcuts"));
  dialog.append(title, table, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "k" && (isMac ? event.metaKey : event.ctrlKey) && !event.altKey && !event.shiftKey) {
    event.preventDefault();
    if (!document.querySelector("dialog[open]:not(#palette)")) openPalette(); // what is half written stays in sight
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isWriting(event.target) || document.querySelector("dialog[open]")) return;
  if (event.key === "?") showKeys();
  else if (event.key !== "/" ) return;
  else if (!goToSearch()) openPalette();
  event.preventDefault();
});

for (const button of document.querySelectorAll("[data-palette]")) {
  button.querySelector("kbd").textContent = paletteKeys;
  button.addEventListener("click", openPalette);
}
