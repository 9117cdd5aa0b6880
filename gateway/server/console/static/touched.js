// Whether a page has what its reader has written, and would lose.

// Whether a field's value is another than that with which the page came.
export function isTouched(field) {
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (!field.options) return field.value !== field.defaultValue;
  const before = [...field.options].findIndex((option) => option.defaultSelected);
  return field.selectedIndex !== Math.max(before, 0);
}

// An open dialog counts, and what a script has marked with data-unsaved: attached files are in no field.
export function hasInput() {
  return Boolean(document.querySelector("dialog[open], [data-unsaved]"))
    || [...document.querySelectorAll("form:not([data-filter]) [name]")].some(isTouched);
}
