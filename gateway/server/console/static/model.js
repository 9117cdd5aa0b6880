// The choice of a model: one of the list, or another by its name.
export function watchModel(root = document) {
  const place = root.querySelector("[data-model]");
  const select = place.querySelector("select");
  const other = place.querySelector("input");
  const isOther = () => select.selectedOptions[0]?.dataset.other !== undefined;
  const show = () => {
    other.hidden = !isOther();
    other.required = isOther();
  };
  select.addEventListener("change", () => {
    show();
    if (isOther()) other.focus();
  });
  show();
  return {
    read: () => (isOther() ? other.value.trim() : select.value),
    onChange(tell) {
      select.addEventListener("change", tell);
      other.addEventListener("input", tell);
    },
  };
}
