// New rows of the list as requests end. The page itself is asked for again, so that rows are written in one place only.
import { call, Fault, send } from "./api.js";
import { tellTimes } from "./console.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

const LOOK_MS = 2000;
const IDLE_MS = 20 * 60_000; // a page that nobody looks at does not keep its session alive
const button = document.getElementById("follow");
const linkOf = (row) => row.querySelector("th a").pathname;
let cursor = button?.dataset.cursor;
let timer = null;
let touchedAt = Date.now();

for (const kind of ["pointermove", "keydown", "scroll"]) {
  addEventListener(kind, () => { touchedAt = Date.now(); }, { passive: true });
}

export function followRequests(afterwards) {
  button?.addEventListener("click", () => (timer === null ? start(afterwards) : stop()));
}

function start(afterwards) {
  button.setAttribute("aria-pressed", "true");
  touchedAt = Date.now();
  timer = setTimeout(() => look(afterwards), 0);
}

function stop() {
  clearTimeout(timer);
  timer = null;
  button.setAttribute("aria-pressed", "false");
}

async function look(afterwards) {
  try {
    if (!document.hidden && (await hasNew())) await readRows(afterwards);
  } catch (fault) {
    stop();
    if (!(fault instanceof Fault)) throw fault;
    toast(fault.message, "bad");
    return;
  }
  if (timer === null) return; // stopped meanwhile
  if (Date.now() - touchedAt > IDLE_MS) {
    stop();
    toast(t("Live updates stopped: this page was not used for a while"));
  } else timer = setTimeout(() => look(afterwards), LOOK_MS);
}

async function hasNew() {
  const query = new URLSearchParams(button.dataset.query);
  query.set("after", cursor);
  query.set("limit", "1");
  const page = await call("GET", `/admin/v1/requests?${query}`);
  cursor = page.more && !page.data.length ? page.next : page.newest;
  return page.data.length > 0;
}

async function readRows(afterwards) {
  const page = new DOMParser().parseFromString(
    await (await send(`/console/requests${location.search}`)).text(), "text/html");
  const found = page.getElementById("found");
  if (!found) return; // signed out: the next look says so
  const old = document.getElementById("found");
  const before = new Set([...old.querySelectorAll("[data-row]")].map(linkOf));
  const focused = document.activeElement?.closest("[data-row]");
  const focusedLink = focused && linkOf(focused);
  old.replaceChildren(...[...found.children].map((child) => document.importNode(child, true)));
  for (const row of old.querySelectorAll("[data-row]")) {
    row.classList.toggle("fresh", !before.has(linkOf(row)));
    if (linkOf(row) === focusedLink) row.querySelector("th a").focus();
  }
  tellTimes(old);
  afterwards();
}
