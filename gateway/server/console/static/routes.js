// Routes: rows for the steps, which are added, moved and removed; and a request to each step that says what was answered.
import { call } from "./api.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

// Names are separated by commas; one with a comma is quoted as in JSON.
const list = (text) => (text.match(/\s*"(?:[^"\\]|\\.)*"[^,]*|[^,]+/g) ?? []).map((part) => part.trim()).filter(Boolean);

function readName(text) {
  try {
    return text.startsWith('"') ? JSON.parse(text) : text;
  } catch {
    return text;
  }
}

function readModel(text) {
  const weighted = text.match(/^(.+)\*(\d{1,5})$/);
  return weighted ? { model: readName(weighted[1]), weight: Number(weighted[2]) } : readName(text);
}

const READERS = {
  text: (text) => text,
  number: Number,
  flag: (text) => text === "true",
  names: (text) => list(text).map(readName),
  models: (text) => list(text).map(readModel),
};

// A step as the admin API takes it; what is empty has its default. Fields that the form does not know stay.
function readStep(row) {
  const on = [...row.querySelectorAll("[data-cause]")].filter((box) => box.checked).map((box) => box.dataset.cause);
  const step = { ...JSON.parse(row.dataset.others), on };
  for (const input of row.querySelectorAll("[data-field]")) {
    const text = input.value.trim();
    if (text === "") continue;
    const place = input.dataset.in ? (step[input.dataset.in] ??= {}) : step;
    place[input.dataset.field] = READERS[input.dataset.kind ?? "text"](text);
  }
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
