// Saved views: names for the filters of the list. Each member's are kept in this browser.
import { t } from "./language.js";

const MOST = 20;
const nav = document.getElementById("views");
const PLACE = `request-views:${nav.dataset.owner}`;

function read() {
  try {
    const views = JSON.parse(localStorage.getItem(PLACE));
    return Array.isArray(views) ? views.filter((view) => typeof view?.name === "string" && typeof view?.query === "string") : [];
  } catch {
    return [];
  }
}

// The filters of this page: no place in the list, and no request.
function currentQuery() {
  const query = new URLSearchParams(location.search);
  for (const name of ["before", "request"]) query.delete(name);
  query.sort();
  return query.toString();
}

function write(views) {
  localStorage.setItem(PLACE, JSON.stringify(views.slice(-MOST)));
  show();
}

function show() {
  for (const old of nav.querySelectorAll(".view")) old.remove();
  const here = currentQuery();
  const last = nav.querySelector("[data-open]");
  for (const { name, query } of read()) {
    const view = document.createElement("span");
    view.className = "view";
    const link = document.createElement("a");
    link.href = `${location.pathname}?${query}`;
    link.textContent = name;
    if (query === here) link.setAttribute("aria-current", "true");
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "quiet small";
    remove.textContent = "✕";
    remove.setAttribute("aria-label", t("Delete the view {name}", { name }));
    remove.addEventListener("click", () => write(read().filter((one) => one.name !== name)));
    view.append(link, remove);
    nav.insertBefore(view, last);
  }
}

document.getElementById("new-view").addEventListener("submit", (event) => {
  event.preventDefault();
  event.target.closest("dialog").close();
  const name = event.target.elements.name.value.trim();
  if (!name) return;
  write([...read().filter((view) => view.name !== name), { name, query: currentQuery() }]);
  event.target.reset();
});
show();
