// A request in a drawer over the list. The address has its id: it can be sent to somebody, and Back closes the drawer.
import { at, Fault, send } from "./api.js";
import { tellTimes } from "./console.js";
import { toast } from "./toast.js";

const ID = /^req_[0-9a-f]{24}$/;
const STEPS = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 };
const byId = (id) => document.getElementById(id);
const drawer = byId("drawer");
let shown = null; // the id of the request that is shown
let wanted = null; // the id of the one to show: `shown`, or one whose page is on its way

const findLinks = () => [...document.querySelectorAll("[data-drawer] tbody th a")];
const idOf = (link) => decodeURIComponent(link.pathname.split("/").pop());
const findLink = (id) => findLinks().find((link) => idOf(link) === id);

function readAddress() {
  const id = new URLSearchParams(location.search).get("request");
  return ID.test(id) ? id : null;
}

// A drawer has one entry of the history, however many requests are shown: Back leads to the list. The entry stays after
// the drawer is closed: to go back from it takes a moment, in which somebody may have gone elsewhere.
function writeAddress(id) {
  const url = new URL(location.href);
  if (id) url.searchParams.set("request", id);
  else url.searchParams.delete("request");
  if (url.href === location.href) return;
  if (id && !drawer.open && !history.state?.drawer) history.pushState({ drawer: true }, "", url);
  else history.replaceState(history.state, "", url);
}

const pathOf = (id) => `/console/requests/${encodeURIComponent(id)}`;

// The content of a request's page; null if it is the page to sign in.
async function load(id) {
  const page = new DOMParser().parseFromString(await (await send(pathOf(id))).text(), "text/html");
  return page.querySelector("body:not(.alone) main");
}

async function show(id) {
  wanted = id;
  let content;
  try {
    content = await load(id);
  } catch (fault) {
    if (!(fault instanceof Fault)) throw fault;
    if (wanted === id) wanted = shown;
    toast(fault.message, "bad");
    return;
  }
  if (wanted !== id) return; // another one was chosen meanwhile, or the drawer closed
  if (!content) {
    location.assign(at(pathOf(id)));
    return;
  }
  shown = id;
  writeAddress(id);
  content.querySelector("noscript")?.remove();
  const place = byId("drawer-content");
  place.replaceChildren(...[...content.children].map((child) => document.importNode(child, true)));
  tellTimes(place);
  byId("drawer-page").href = at(pathOf(id));
  refreshDrawer();
  if (!drawer.open) drawer.showModal();
  drawer.scrollTop = 0;
}

// Marks the row that is shown, after the drawer or the rows have changed.
export function refreshDrawer() {
  const links = findLinks();
  const index = links.findIndex((link) => idOf(link) === shown);
  for (const link of links) {
    if (idOf(link) === shown) link.closest("tr").setAttribute("aria-current", "true");
    else link.closest("tr").removeAttribute("aria-current");
  }
  byId("drawer-before").disabled = index <= 0;
  byId("drawer-after").disabled = index < 0 || index === links.length - 1;
}

function move(step) {
  const links = findLinks();
  const index = links.findIndex((link) => idOf(link) === wanted);
  const next = index < 0 ? undefined : links[index + step];
  if (next) show(idOf(next));
}

document.addEventListener("click", (event) => {
  const row = event.target.closest("[data-drawer] [data-row]");
  const other = event.target.closest("a, button");
  if (!row || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || String(getSelection())) return;
  const link = row.querySelector("th a");
  if (other && other !== link) return;
  event.preventDefault();
  show(idOf(link));
});

function clear() {
  const link = findLink(shown);
  shown = wanted = null;
  refreshDrawer();
  byId("drawer-content").replaceChildren();
  link?.focus();
}

// The event comes some time after the drawer is closed: Forward may have opened the drawer again by then.
drawer.addEventListener("close", () => {
  if (!shown || drawer.open) return;
  clear();
  writeAddress(null);
});

drawer.addEventListener("click", (event) => {
  if (event.target === drawer) drawer.close(); // beside it
});

function follow() {
  const id = readAddress();
  if (id && id !== shown) show(id);
  else if (!id && drawer.open) {
    drawer.close();
    clear();
  }
}
addEventListener("popstate", follow);

// In the drawer to the next request, in the list to the next row.
document.addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, pre, [contenteditable]")) return;
  if (drawer.open) {
    event.preventDefault();
    move(step);
  } else if (!document.querySelector("dialog[open]") && event.key.length === 1) {
    const links = findLinks();
    const index = links.indexOf(document.activeElement);
    links[index < 0 ? 0 : index + step]?.focus();
  }
});
byId("drawer-before").addEventListener("click", () => move(-1));
byId("drawer-after").addEventListener("click", () => move(1));
follow();
