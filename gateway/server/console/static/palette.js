// The command palette, loaded when it is opened first: pages, actions, and a search for objects by their names.
// It is a combobox: the field keeps the focus, the arrows choose, Enter goes there.
import { at, call } from "./api.js";
import { n, t } from "./language.js";

const PAUSE_MS = 120;
const PLACES = {
  request: (id) => `/console/requests/${id}`,
  end_user: (id) => `/console/requests?end_user=${id}&last=7d`,
  account: (id) => `/console/accounts/${id}`,
  key: (id) => `/console/keys/${id}`,
  member: (id, name) => `/console/members?search=${name}`,
  model: (id) => `/console/models/${id}`,
  channel: (id) => `/console/channels/${id}`,
  route: (id) => `/console/routes/${id}`,
  limit: (id) => `/console/limits/${id}`,
};
const TITLES = {
  page: t("Pages"), action: t("Actions"), request: t("Requests"), end_user: t("End users"), account: t("Accounts"), key: t("Keys"), member: t("Members"),
  model: t("Models"), channel: t("Channels"), route: t("Routes"), limit: t("Limits"),
};
// Each with the role that it needs, and the page whose dialog it opens.
const ACTIONS = [
  ["member", t("New key"), "/console/keys#new-key"],
  ["administrator", t("Add channel"), "/console/new-channel"],
  ["administrator", t("New account"), "/console/accounts#new-account"],
  ["administrator", t("Invite member"), "/console/members#invite"],
  ["administrator", t("Invite many"), "/console/members#invite-many"],
  ["administrator", t("New limit"), "/console/limits#new-limit"],
  ["administrator", t("New route"), "/console/routes#new-route"],
  ["administrator", t("Set price"), "/console/prices#new-price"],
];
const ROLES = ["viewer", "member", "administrator"];
const dialog = makeDialog();
const field = dialog.querySelector("input");
const list = dialog.querySelector("[role=listbox]");
const status = dialog.querySelector("[role=status]");
let options = [];
let chosen = -1;
let shownFor = ""; // the text whose matches are shown
let timer = 0;
let latest = null; // the search under way
let search = new AbortController();

function make(tag, fields = {}, attributes = {}) {
  const element = Object.assign(document.createElement(tag), fields);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function makeDialog() {
  const made = make("dialog", { className: "palette", id: "palette" }, { "aria-label": t("Go to") });
  made.append(
    make("input", { type: "text", autocomplete: "off", spellcheck: false, maxLength: 200, placeholder: t("Page, action, name, last four characters of a key, or request ID") }, {
      role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list", "aria-label": t("Go to"),
    }),
    make("div", { id: "palette-list", className: "matches" }, { role: "listbox", "aria-label": t("Matches") }),
    make("p", { className: "hidden-text" }, { role: "status" }),
  );
  document.body.append(made);
  made.addEventListener("click", (event) => {
    if (event.target === made) made.close(); // beside it
  });
  return made;
}

// What the menu has is what this reader may see.
function listPages() {
  const links = [...document.querySelectorAll("#menu li a, #menu .me > a")];
  return links.map((link) => ({ kind: "page", name: (link.querySelector("strong") ? t("Your account") : link.textContent.trim()), href: link.href }));
}

function listActions() {
  const rights = ROLES.indexOf(document.body.dataset.role);
  return ACTIONS.filter(([role]) => ROLES.indexOf(role) <= rights).map(([, name, path]) => ({ kind: "action", name, href: at(path) }));
}

function hasWords(name, text) {
  return text.toLowerCase().split(/\s+/).every((word) => name.toLowerCase().includes(word));
}

// Whoever has chosen one keeps it when more are found.
function show(found) {
  const kept = chosen > 0 ? options[chosen].href : "";
  options = [];
  list.replaceChildren();
  for (const kind of Object.keys(TITLES)) {
    const matches = found.filter((match) => match.kind === kind);
    if (!matches.length) continue;
    const group = make("div", {}, { role: "group", "aria-labelledby": `palette-${kind}` });
    group.append(make("div", { id: `palette-${kind}`, className: "group-title", textContent: TITLES[kind] }, { role: "presentation" }));
    for (const match of matches) group.append(makeOption(match));
    list.append(group);
  }
  const index = options.findIndex((option) => option.href === kept);
  choose(options.length ? Math.max(index, 0) : -1);
  status.textContent = options.length ? n("{count} match", "{count} matches", options.length) : t("Nothing matches");
  list.classList.toggle("none", !options.length);
  list.dataset.empty = t("Nothing matches");
}

function makeOption(match) {
  const option = make("a", { id: `palette-option-${options.length}`, href: match.href, tabIndex: -1 }, { role: "option", "aria-selected": "false" });
  option.append(make("span", { textContent: match.name }));
  if (match.detail) option.append(" ", make("small", { textContent: match.detail }));
  options.push(option);
  return option;
}

function choose(index) {
  options[chosen]?.setAttribute("aria-selected", "false");
  chosen = index;
  const option = options[index];
  if (option) {
    option.setAttribute("aria-selected", "true");
    field.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  } else field.removeAttribute("aria-activedescendant");
}

function listOwn(text) {
  const begins = (match) => Number(match.name.toLowerCase().startsWith(text.toLowerCase()));
  return [...listPages(), ...listActions()].filter((match) => hasWords(match.name, text)).sort((one, other) => begins(other) - begins(one));
}

async function find(text) {
  search.abort();
  search = new AbortController();
  const { signal } = search;
  const own = listOwn(text);
  shownFor = text;
  chosen = -1; // what was chosen was of another text
  if (!text) {
    show(own);
    return;
  }
  if (own.length) show(own);
  try {
    const { data } = await call("GET", `/admin/v1/search?search=${encodeURIComponent(text)}`, null, signal);
    const found = data.map(({ kind, id, name, detail }) => ({ kind, name, detail, href: at(PLACES[kind](encodeURIComponent(id), encodeURIComponent(name))) }));
    if (!signal.aborted) show([...own, ...found]);
  } catch (fault) {
    if (!signal.aborted && fault.name !== "AbortError") {
      show(own);
      status.textContent = fault.message;
    }
  }
}

function go(option, elsewhere) {
  if (elsewhere) {
    window.open(option.href, "_blank", "noopener");
    return;
  }
  dialog.close();
  location.assign(option.href);
}

field.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => { latest = find(field.value.trim()); }, PAUSE_MS);
});
field.addEventListener("keydown", async (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && options.length) {
    event.preventDefault();
    choose((chosen + step + options.length) % options.length);
  } else if (event.key === "Enter" && !event.isComposing) {
    event.preventDefault();
    const elsewhere = event.ctrlKey || event.metaKey;
    clearTimeout(timer);
    if (field.value.trim() !== shownFor) latest = find(field.value.trim());
    await latest;
    if (options[chosen]) go(options[chosen], elsewhere);
  }
});
list.addEventListener("click", (event) => {
  const option = event.target.closest("[role=option]");
  if (!option || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(option, false);
});
dialog.addEventListener("close", () => search.abort());

export function openPalette() {
  if (dialog.open) return;
  field.value = shownFor = "";
  dialog.showModal();
  show(listOwn(""));
  field.focus();
}
