// Invitations of many: lines of "mail, role, account", checked before anything is made, and the links to hand out.
import { call } from "./api.js";
import { n, t } from "./language.js";

const MAX_LINES = 500;
const ROLES = ["viewer", "member", "administrator"];
const MAIL = /^[a-z0-9][^\s,;@]*@[^\s,;@]+\.[^\s,;@]+$/i; // begins as no formula of a spreadsheet does
const form = document.getElementById("invitations");
const people = document.getElementById("people");
const file = document.getElementById("people-file");
const general = document.getElementById("people-account");
const accounts = new Set([...document.querySelectorAll("#invite-accounts option")].map((option) => option.value));
const preview = form.querySelector("[data-preview]");
const invite = form.querySelector("[data-invite]");
const save = form.querySelector("[data-save]");
let lines = [];

// The fields of a line of CSV: separated by commas, semicolons or tabs; those in quotation marks may contain them.
export function readFields(line) {
  const fields = [];
  for (const [, quoted, plain] of line.matchAll(/(?:^|[,;\t])\s*(?:"((?:[^"]|"")*)"\s*|([^,;\t]*))/g)) {
    fields.push((quoted?.replaceAll('""', '"') ?? plain).trim());
  }
  return fields;
}

function findProblem({ mail, role, account }, seen) {
  if (!MAIL.test(mail)) return t("“{mail}” is not an email address", { mail });
  if (seen.has(mail.toLowerCase())) return t("This address is already on an earlier line");
  if (!ROLES.includes(role)) return t("The role must be viewer, member or administrator");
  if (!account) return t("The account is missing");
  return accounts.has(account) ? "" : t("There is no account “{account}”", { account });
}

export function readLines(text, account) {
  const seen = new Set();
  return text.split(/\r?\n/).map((line, index) => ({ number: index + 1, fields: readFields(line) }))
    .filter(({ number, fields }) => fields.some(Boolean) && !(number === 1 && /^e?-?mail$/i.test(fields[0])))
    .map(({ number, fields: [mail = "", role = "", own = ""] }) => {
      const line = { number, mail, role: role.toLowerCase() || "member", account: own || account, link: "" };
      line.problem = findProblem(line, seen);
      seen.add(mail.toLowerCase());
      return line;
    });
}

function makeCell(text, className = "inert-text") {
  return Object.assign(document.createElement("td"), { textContent: text, className });
}

function makeResult(line) {
  const cell = makeCell(line.problem || (line.link ? "" : t("ready")));
  cell.classList.toggle("error", Boolean(line.problem));
  if (line.link) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: t("Copy link") });
    button.className = "quiet small";
    button.dataset.copy = line.link;
    button.setAttribute("aria-label", t("Copy the link for {mail}", { mail: line.mail }));
    cell.append(button);
  }
  return cell;
}

function show() {
  const wrong = lines.filter((line) => line.problem).length;
  const linked = lines.filter((line) => line.link).length;
  const ready = lines.length - wrong - linked;
  preview.hidden = !lines.length;
  preview.querySelector("tbody").replaceChildren(...lines.map((line) => {
    const row = document.createElement("tr");
    row.append(makeCell(line.number, "number"), makeCell(line.mail), makeCell(line.role, ""), makeCell(line.account), makeResult(line));
    return row;
  }));
  preview.querySelector("[data-summary]").textContent = [
    linked && n("{count} link created", "{count} links created", linked),
    ready && n("{count} invitation ready", "{count} invitations ready", ready),
    wrong && n("{count} line with an error", "{count} lines with an error", wrong),
  ].filter(Boolean).join(" · ");
  invite.hidden = !ready;
  invite.textContent = n("Create {count} link", "Create {count} links", ready);
  save.hidden = !linked;
}

function tellError(text) {
  const place = form.querySelector("[data-error]");
  place.hidden = !text;
  place.textContent = text;
}

function check() {
  if (people.readOnly) return; // links are shown once: they must not vanish
  const found = readLines(people.value, general.value.trim());
  tellError("");
  if (!found.length) tellError(t("Enter at least one line"));
  if (found.length > MAX_LINES) tellError(n("Enter at most {count} line", "Enter at most {count} lines", MAX_LINES));
  lines = found.length > MAX_LINES ? [] : found;
  show();
}

// An address that has its link keeps it: a second press makes no second one.
async function inviteAll() {
  invite.disabled = true;
  invite.setAttribute("aria-busy", "true");
  people.readOnly = true; // what has links is no longer what is written there
  general.readOnly = true;
  file.disabled = true;
  form.querySelector("[data-check-lines]").disabled = true; // Enter in a field presses hidden buttons, too
  for (const line of lines.filter((one) => !one.problem && !one.link)) {
    try {
      line.link = (await call("POST", "/admin/v1/links", { account: line.account, role: line.role })).url;
    } catch (fault) {
      line.problem = fault.message;
      if (!fault.status || fault.status === 401) break;
    }
  }
  form.querySelector("[data-check-lines]").hidden = true;
  invite.disabled = false;
  invite.removeAttribute("aria-busy");
  show();
}

const quote = (text) => `"${text.replaceAll('"', '""')}"`;

function saveLinks() {
  const rows = [["mail", "role", "account", "link"], ...lines.filter((line) => line.link).map((line) => [line.mail, line.role, line.account, line.link])];
  const text = rows.map((row) => row.map(quote).join(",")).join("\r\n");
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([`${text}\r\n`], { type: "text/csv" })), download: "invitations.csv" });
  link.click();
  URL.revokeObjectURL(link.href);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  check();
});
people.addEventListener("input", () => {
  lines = [];
  show();
});
file.addEventListener("change", async () => {
  const text = file.files[0] ? (await file.files[0].slice(0, 200_000).text()).replace(/^\uFEFF/, "") : "";
  if (!people.readOnly) people.value = text;
  check();
});
invite.addEventListener("click", inviteAll);
save.addEventListener("click", saveLinks);
form.closest("dialog").addEventListener("close", () => {
  if (lines.some((line) => line.link)) location.reload(); // the list of open links has more now
});
