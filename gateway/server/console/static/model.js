// The choice of a model: one of the list, or another by its name.
import { findFacts } from "./model_facts.js";

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
  const read = () => (isOther() ? other.value.trim() : select.value);
  return {
    read,
    // Calls `tell` with the model's name and its options, now and whenever another model is chosen.
    async followOptions(tell) {
      const follow = async () => {
        const name = read();
        const facts = await findFacts(name);
        if (name === read()) tell(name, facts?.options ?? {});
      };
      this.onChange(follow);
      await follow();
    },
    onChange(tell) {
      select.addEventListener("change", tell);
      other.addEventListener("change", tell); // a name is looked up when it is written, not letter by letter
    },
  };
}
