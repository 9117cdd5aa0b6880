// The form of a price: fills in what the model costs now, and lists what would change, before and after.
import { call } from "./api.js";
import { showFault } from "./forms.js";
import { t } from "./language.js";

const form = document.querySelector("#new-price form");
const { model, provider, free, tiers_served: factors } = form.elements;
const rates = [...form.querySelectorAll("[data-rate]")];
const kept = ["tiers", "sizes"].map((name) => form.elements[name]); // no field changes them, and a PUT sets all
let latest = 0;

// The price that a change would replace: the one set here, else the built-in one.
async function findPrice() {
  if (!model.value.trim()) return null;
  const { data } = await call("GET", `/admin/v1/prices?model=${encodeURIComponent(model.value.trim())}`);
  const places = [["console", provider.value], ["shipped", provider.value], ["shipped", ""]];
  for (const [source, place] of places) {
    const found = data.find((one) => one.source === source && one.model === model.value.trim() && (one.provider ?? "") === place);
    if (found) return found;
  }
  return null;
}

// A rate of 0 says nothing where an empty field costs nothing, too; "as input" is another thing than 0.
function write(price, field) {
  const rate = price?.[field.name] ?? "";
  return String(rate === 0 && field.dataset.rate !== "part" ? "" : rate);
}

function refill(field, value) {
  const untouched = field.value === field.defaultValue;
  field.defaultValue = value;
  if (untouched) field.value = value;
}

async function fillIn() {
  const mine = ++latest;
  const price = await findPrice().catch(() => null);
  if (mine !== latest) return;
  for (const field of rates) refill(field, write(price, field));
  refill(factors, Object.entries(price?.tiers_served ?? {}).map((one) => one.join("=")).join(", "));
  for (const field of kept) field.value = JSON.stringify(price?.[field.name] ?? []);
  const untouched = free.checked === free.defaultChecked;
  free.defaultChecked = price?.free ?? false;
  if (untouched) free.checked = free.defaultChecked;
  form.querySelector("[data-kept]").hidden = !(price?.tiers.length || price?.sizes.length);
  tellChanges();
}

function label(field) {
  const group = field.closest("[data-group]")?.dataset.group;
  const own = form.querySelector(`label[for="${field.id}"]`).firstChild.textContent.trim();
  return group ? `${group}: ${own}` : own;
}

function tell(field, value) {
  if (value === "") return field.placeholder || t("nothing");
  return field === factors ? value : `$${value}`;
}

function tellChanges() {
  for (const field of [...rates, factors, ...kept]) field.disabled = free.checked;
  const changed = [...rates, factors].filter((field) => !free.checked && field.value.trim() !== field.defaultValue);
  const lines = changed.map((field) => `${label(field)}: ${tell(field, field.defaultValue)} → ${tell(field, field.value.trim())}`);
  if (free.checked && !free.defaultChecked) {
    const before = [...rates, factors].filter((field) => field.defaultValue);
    lines.push(...before.map((field) => `${label(field)}: ${tell(field, field.defaultValue)} → ${t("free")}`));
  }
  const place = form.querySelector("[data-changes]");
  place.hidden = !lines.length;
  place.querySelector("ul").replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
}

function isEmpty() {
  return !free.checked && rates.every((field) => field.value.trim() === "") && kept.every((field) => field.value === "[]");
}

model.addEventListener("change", fillIn);
provider.addEventListener("change", fillIn);
form.addEventListener("input", tellChanges);
form.addEventListener("submit", (event) => {
  if (!isEmpty()) return;
  event.preventDefault();
  event.stopPropagation();
  showFault(form, { param: "free", message: t("Enter a rate, or select “Free” if the model costs nothing.") });
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-open='new-price']");
  if (!button) return;
  for (const field of [...rates, factors]) field.defaultValue = "";
  free.defaultChecked = false;
  form.reset();
  model.value = button.dataset.model ?? "";
  provider.value = button.dataset.provider ?? "";
  fillIn();
});
