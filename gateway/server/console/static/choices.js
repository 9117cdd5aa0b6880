// A text field whose values the chosen model may list: then they are offered in a select, which writes them into the field.
import { t } from "./language.js";
import { setReason } from "./model_facts.js";

export class Choices {
  // `other` says that values besides those of the list may be typed.
  constructor(field, { other = false } = {}) {
    this.field = field;
    this.other = other;
    this.value = field.value; // the latest that was chosen or typed, also while the model takes none or others
    this.isTyped = false;
    this.label = document.querySelector(`label[for="${field.id}"]`);
    this.select = Object.assign(document.createElement("select"), { id: `${field.id}-choice`, hidden: true });
    this.select.dataset.skip = "";
    this.select.addEventListener("change", () => this.take());
    field.addEventListener("input", () => {
      this.value = field.value;
      this.isTyped = Boolean(this.value);
    });
    field.before(this.select);
  }

  isOther() {
    return this.select.selectedOptions[0]?.dataset.other !== undefined;
  }

  // `values`: null if they are not known. An empty list: the model takes none, for the reason that is given.
  offer(values, reason) {
    const wasOther = !this.select.hidden && this.isOther();
    const isList = Boolean(values?.length);
    setReason(this.field, values && !isList ? reason : "");
    this.select.hidden = !isList;
    if (isList) this.fill(values.map(String), wasOther);
    else this.field.value = values ? "" : this.value;
    this.show();
  }

  fill(values, wasOther) {
    const options = values.map((value) => new Option(value, value));
    if (!this.field.required) options.unshift(new Option(this.field.placeholder, ""));
    let chosen = options.findIndex((option) => option.value === this.value);
    if (this.other) {
      const option = new Option(t("Other…"), "");
      option.dataset.other = "";
      if (wasOther || (chosen < 0 && this.isTyped)) chosen = options.length;
      options.push(option);
    }
    this.select.replaceChildren(...options);
    this.select.selectedIndex = Math.max(chosen, 0);
    this.field.value = this.isOther() ? this.value : this.select.value;
  }

  take() {
    this.field.value = this.value = this.isOther() ? "" : this.select.value;
    this.isTyped = false;
    this.show();
    if (this.isOther()) this.field.focus();
  }

  // The label is that of what can be worked.
  show() {
    this.field.hidden = !this.select.hidden && !this.isOther();
    this.label.htmlFor = this.select.hidden ? this.field.id : this.select.id;
    if (this.select.hidden) this.field.removeAttribute("aria-label");
    else this.field.setAttribute("aria-label", this.label.firstChild.textContent.trim());
  }
}
