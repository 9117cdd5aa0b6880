// What every page has: forms that call the API, dialogs, copying, the reader's own time, the menu, and the theme.
import "./forms.js";
import { formatMoment, formatShort, language, t } from "./language.js";
import { showLater, toast } from "./toast.js";

const THEMES = { system: t("system"), light: t("light"), dark: t("dark") };

// Moments in the reader's zone; the whole of one on pointing at it.
const whole = new Intl.DateTimeFormat(language, { dateStyle: "full", timeStyle: "long" });
function keepWhole(text) {
  const span = document.createElement("span"); // a line may end after the day, but not in it
  span.textContent = text;
  return span;
}
export function tellTimes(root = document) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const text = time.dataset.short === undefined ? formatMoment(moment) : formatShort(moment);
    time.replaceChildren(...text.split(" ").flatMap((part) => [keepWhole(part), " "]).slice(0, -1));
    time.title = whole.format(moment);
  }
}
tellTimes();

// What is cut off, and what it means that a model has no price, on pointing at it.
document.addEventListener("mouseover", ({ target }) => {
  const unpriced = target.closest?.("[data-unpriced]");
  if (unpriced) unpriced.title = t('Nothing is charged for this model. Keys and accounts with a spending limit can use it only if billing.unpriced is "free"; if it is "refuse", nobody can. An administrator can set a price on the Prices page or in the configuration file ([[price]]); 0 if the model costs nothing.');
  const cut = target.closest?.(".cut, .wide, .badge, .lines :is(td, th)");
  if (cut && cut.scrollWidth > cut.clientWidth && !cut.closest("[title]")) cut.title = cut.textContent.trim();
});

// Filters by time are in the reader's zone, as the times of the page are; the address of the page has UTC.
const MOMENTS = 'form[data-filter] input[type="datetime-local"][data-moment]';
for (const field of document.querySelectorAll(MOMENTS)) {
  const moment = new Date(field.dataset.moment);
  if (Number.isNaN(moment.getTime())) continue;
  field.value = new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
function sendMoment(field) {
  const moment = new Date(field.value);
  field.type = "hidden";
  field.value = moment.toISOString().replace(/\.\d+Z$/, "Z");
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined || button.dataset.copyFrom) {
    const from = button.dataset.copyFrom && document.getElementById(button.dataset.copyFrom);
    const text = from ? (from.value ?? from.textContent) : button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
      toast(t("Copied"));
    } catch {
      toast(t("This browser cannot copy here. Select the text and copy it manually."), "bad");
    }
  } else if (button.dataset.open) {
    document.getElementById(button.dataset.open)?.showModal();
  } else if (button.dataset.close !== undefined) {
    button.closest("dialog")?.close();
  } else if (button.classList.contains("menu-button")) {
    button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") !== "true"));
  } else if (button.dataset.language) {
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = `${button.dataset.cookie}=${button.dataset.language}; Path=/console; Max-Age=31536000; SameSite=Lax${secure}`;
    location.reload();
  } else if (button.dataset.themeSwitch !== undefined) {
    const order = Object.keys(THEMES);
    const now = localStorage.getItem("theme") ?? "system";
    const next = order[(order.indexOf(now) + 1) % order.length];
    if (next === "system") localStorage.removeItem("theme");
    else localStorage.setItem("theme", next);
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    showTheme();
  }
});

// Choices that filter a page send it again by themselves: <form method="get" data-filter>.
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-filter]");
  if (form) form.requestSubmit();
});
document.addEventListener("submit", (event) => {
  if (event.target.dataset.filter === undefined) return;
  for (const field of event.target.elements) {
    if (field.name && !field.value) field.disabled = true; // an empty filter is none, and not worth a place in the address
    else if (field.matches(MOMENTS)) sendMoment(field);
  }
});

// What a browser has kept of a page that was left is no page of now: its buttons rest, and its reader may have signed out.
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

function showTheme() {
  for (const place of document.querySelectorAll("[data-theme-switch] span")) {
    place.textContent = THEMES[localStorage.getItem("theme")] ?? THEMES.system;
  }
}
showTheme();
showLater();

// The name of a dialog in the address opens it: /console/keys#new-key.
function openNamed() {
  const dialog = document.getElementById(location.hash.slice(1));
  if (dialog?.localName !== "dialog" || dialog.open) return;
  history.replaceState(null, "", location.pathname + location.search); // not again when the page is loaded again
  dialog.showModal();
}
addEventListener("hashchange", openNamed);
openNamed();
