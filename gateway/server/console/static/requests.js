// The request log: presets of the time, and a request in a drawer over the list.
import { Fault, send } from "./api.js";
import { tellTimes } from "./console.js";
import { toast } from "./toast.js";

const byId = (id) => document.getElementById(id);
const drawer = byId("drawer");
const links = [...document.querySelectorAll("[data-drawer] tbody th a")];
let open = -1; // the index of the link whose request is shown
let wanted = -1; // the index of the one to show: that of `open`, or of a page on its way

async function show(index) {
  const link = links[index];
  if (!link) return;
  wanted = index;
  let page;
  try {
    page = new DOMParser().parseFromString(await (await send(link.href)).text(), "text/html");
  } catch (fault) {
    if (!(fault instanceof Fault)) throw fault;
    if (wanted === index) wanted = open;
    toast(fault.message, "bad");
    return;
  }
  if (wanted !== index) return; // another one was chosen meanwhile, or the drawer closed
  const content = page.querySelector("main");
  if (!content) {
    location.assign(link.href);
    return;
  }
  links[open]?.closest("tr").removeAttribute("aria-current");
  open = index;
  link.closest("tr").setAttribute("aria-current", "true");
  content.querySelector("noscript")?.remove();
  const place = byId("drawer-content");
  place.replaceChildren(...[...content.children].map((child) => document.importNode(child, true)));
  tellTimes(place);
  byId("drawer-page").href = link.href;
  byId("drawer-before").disabled = index === 0;
  byId("drawer-after").disabled = index === links.length - 1;
  if (!drawer.open) drawer.showModal();
  drawer.scrollTop = 0;
}

document.querySelector("[data-drawer]")?.addEventListener("click", (event) => {
  const row = event.target.closest("[data-row]");
  const other = event.target.closest("a, button");
  if (!row || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || String(getSelection())) return;
  const index = links.findIndex((link) => link.closest("tr") === row);
  if (other && other !== links[index]) return;
  event.preventDefault();
  show(index);
});
drawer?.addEventListener("close", () => {
  const link = links[open];
  open = wanted = -1;
  link?.closest("tr").removeAttribute("aria-current");
  byId("drawer-content").replaceChildren();
  link?.focus();
});
drawer?.addEventListener("click", (event) => {
  if (event.target === drawer) drawer.close(); // beside it
});
drawer?.addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step || event.target.closest("pre")) return;
  event.preventDefault();
  show(wanted + step);
});
byId("drawer-before")?.addEventListener("click", () => show(wanted - 1));
byId("drawer-after")?.addEventListener("click", () => show(wanted + 1));

for (const button of document.querySelectorAll("[data-last-minutes]")) {
  button.addEventListener("click", () => {
    const form = button.closest("form");
    const since = new Date(Date.now() - Number(button.dataset.lastMinutes) * 60_000);
    form.elements.since.value = new Date(since.getTime() - since.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
    form.elements.until.value = "";
    form.requestSubmit();
  });
}
