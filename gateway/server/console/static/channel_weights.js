// The weights of channels: number and slider go together, each tier shows the shares, and all are saved at once.
import { call } from "./api.js";
import { showFault } from "./forms.js";
import { t } from "./language.js";
import { tellLater } from "./toast.js";

const form = document.getElementById("weights");
const save = form.querySelector("[type=submit]");
const listRows = (root) => [...root.querySelectorAll("[data-channel]")];
const numberOf = (row) => row.querySelector("[data-weight]");

// A channel that gets no requests at the moment leaves its share to the others.
function showShares(tier) {
  const rows = listRows(tier);
  const weights = rows.map((row) => (row.dataset.serves && numberOf(row).validity.valid ? Number(numberOf(row).value) : 0));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  rows.forEach((row, index) => {
    row.querySelector("[data-share]").textContent = sum ? `${((100 * weights[index]) / sum).toFixed(1).replace(/\.0$/, "")} %` : "–";
  });
}

const listChanged = () => listRows(form).filter((row) => !numberOf(row).disabled && numberOf(row).value !== numberOf(row).defaultValue);

form.addEventListener("input", (event) => {
  const row = event.target.closest("[data-channel]");
  const slider = row.querySelector("[data-slider]");
  if (event.target === slider) numberOf(row).value = slider.value;
  else {
    if (Number(numberOf(row).value) > Number(slider.max)) slider.max = numberOf(row).value;
    slider.value = numberOf(row).value;
  }
  showShares(row.closest("[data-tier]"));
  save.disabled = !listChanged().length;
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const rows = listChanged();
  if (!rows.length) return;
  const changes = rows.map((row) => [row.dataset.channel, Number(numberOf(row).value), Number(numberOf(row).defaultValue)]);
  save.disabled = true;
  try {
    const weights = Object.fromEntries(changes.map(([name, weight]) => [name, weight]));
    await call("POST", "/admin/v1/channels/weights", { weights });
    tellLater(t("Weights saved"), changes.map(([name, weight, former]) => (
      [`PATCH /admin/v1/channels/${encodeURIComponent(name)}`, { weight: former }, { weight }])));
    location.reload();
  } catch (fault) {
    showFault(form, fault);
    save.disabled = false;
  }
});

for (const tier of form.querySelectorAll("[data-tier]")) showShares(tier);
