// Model aliases as rows of two fields. When their form is read, they become its "model_map", unless nothing was changed.
for (const box of document.querySelectorAll("[data-aliases]")) {
  const rows = box.querySelector("[data-alias-rows]");
  const read = () => Object.fromEntries([...rows.children]
    .map((row) => [row.querySelector("[data-alias-name]").value.trim(), row.querySelector("[data-alias-model]").value.trim()])
    .filter(([name, model]) => name || model));
  const before = JSON.stringify(read());
  box.addEventListener("click", (event) => {
    if (event.target.closest("[data-alias-add]")) {
      rows.append(box.querySelector("template").content.cloneNode(true));
      rows.lastElementChild.querySelector("input").focus();
    } else if (event.target.closest("[data-alias-remove]")) {
      event.target.closest(".alias").remove();
      box.querySelector("[data-alias-add]").focus();
    }
  });
  box.closest("form").addEventListener("read", (event) => {
    if (JSON.stringify(read()) !== before) event.detail.model_map = read();
  });
}
