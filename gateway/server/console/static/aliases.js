// Model aliases as rows of two fields. When their form is read, they become its "model_map", unless nothing was changed. They
// are sent as a whole, so that they are saved only over those that the page was made from.
import { t } from "./language.js";

const nameOf = (row) => row.querySelector("[data-alias-name]");

for (const box of document.querySelectorAll("[data-aliases]")) {
  const form = box.closest("form");
  const rows = box.querySelector("[data-alias-rows]");
  const read = () => Object.fromEntries([...rows.children]
    .map((row) => [nameOf(row).value.trim(), row.querySelector("[data-alias-model]").value.trim()])
    .filter(([name, model]) => name || model));
  const before = JSON.stringify(read());

  // Of two rows with one name one would be lost.
  const checkNames = () => {
    const names = new Set();
    for (const row of rows.children) {
      const name = nameOf(row).value.trim();
      nameOf(row).setCustomValidity(name && names.has(name) ? t("Another row has this name.") : "");
      names.add(name);
    }
  };
  box.addEventListener("input", checkNames);
  box.addEventListener("click", (event) => {
    if (event.target.closest("[data-alias-add]")) {
      rows.append(box.querySelector("template").content.cloneNode(true));
      rows.lastElementChild.querySelector("input").focus();
    } else if (event.target.closest("[data-alias-remove]")) {
      event.target.closest(".alias").remove();
      checkNames();
      box.querySelector("[data-alias-add]").focus();
    }
  });
  form.addEventListener("read", (event) => {
    const isChanged = JSON.stringify(read()) !== before;
    if (isChanged) event.detail.model_map = read();
    if (isChanged && form.dataset.call?.startsWith("PATCH")) form.dataset.former = JSON.stringify({ model_map: JSON.parse(before) });
    else delete form.dataset.former;
  });
}
