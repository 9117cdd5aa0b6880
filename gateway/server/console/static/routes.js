// Routes: rows for the steps, which are added, moved and removed; and a request to each step that says what was answered.
import { call } from "./api.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

const NUMBERS = ["min_prompt_tokens", "max_prompt_tokens"];
const FLAGS = ["images", "tools", "stream"];

const list = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

function readModel(text) {
  const found = text.match(/^(.+)\*(\d{1,5})$/);
  return found ? { model: found[1], weight: Number(found[2]) } : text;
}

// A step as the admin API takes it; what is empty has its default. Fields that the form does not show stay.
function readStep(row) {
  const value = (name) => row.querySelector(`[data-field=${name}]`).value.trim();
  const condition = {};
  for (const name of NUMBERS) if (value(name) !== "") condition[name] = Number(value(name));
  for (const name of FLAGS) if (value(name) !== "") condition[name] = value(name) === "true";
  const on = [...row.querySelectorAll("[data-cause]")].filter((box) => box.checked).map((box) => box.dataset.cause);
  const step = { ...JSON.parse(row.dataset.others), models: list(value("models")).map(readModel), on };
  if (value("channels")) step.channels = list(value("channels"));
  if (Object.keys(condition).length) step.if = condition;
  return step;
}

function count(form) {
  const rows = [...form.querySelectorAll("[data-step]")];
  rows.forEach((row, index) => {
    row.querySelector("[data-number]").textContent = index + 1;
    row.querySelector("[data-step-move='-1']").disabled = index === 0;
    row.querySelector("[data-step-move='1']").disabled = index === rows.length - 1;
    row.querySelector("[data-step-remove]").disabled = rows.length === 1;
    row.querySelector(".causes").hidden = index === 0; // the first step is always tried
  });
}

for (const form of document.querySelectorAll("[data-route]")) {
  const place = form.querySelector("[data-steps]");
  form.querySelector("[data-step-add]").addEventListener("click", () => {
    place.append(form.querySelector("[data-new-step]").content.cloneNode(true));
    count(form);
    place.lastElementChild.querySelector("[data-field=models]").focus();
  });
  place.addEventListener("click", (event) => {
    const row = event.target.closest("[data-step]");
    const move = event.target.closest("[data-step-move]")?.dataset.stepMove;
    if (event.target.closest("[data-step-remove]")) {
      (row.previousElementSibling ?? row.nextElementSibling).querySelector("[data-field=models]").focus();
      row.remove();
    } else if (move === "-1") row.previousElementSibling.before(row);
    else if (move === "1") row.nextElementSibling.after(row);
    else return;
    count(form);
  });
  form.addEventListener("submit", () => {
    form.elements.step.value = JSON.stringify([...form.querySelectorAll("[data-step]")].map(readStep));
  });
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
