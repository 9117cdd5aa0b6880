// By a link into the gateway: its secret part is in the address's fragment, which no server and no log sees.
import { at, call } from "./api.js";
import "./passphrase.js";
import { formatMoment, t } from "./language.js";
import { watchSecondFactor } from "./second_factor.js";

// It leaves the address bar at once, for screens are shared and addresses kept; a page that is loaded anew still has it.
const token = location.hash.slice(1) || history.state?.token || "";
history.replaceState(token ? { token } : null, "", location.pathname + location.search);
addEventListener("hashchange", () => location.reload()); // another link was put into the address bar

const form = document.querySelector("form[data-call]");
const ROLES = { viewer: t("viewer"), member: t("member"), administrator: t("administrator") };
const byId = (id) => document.getElementById(id);

function refuse() {
  byId("no-token").hidden = false;
  byId("with-token").hidden = true;
}

if (form) {
  form.elements.token.value = token;
  form.addEventListener("done", () => history.replaceState(null, ""));
  if (form.id === "join") {
    watchSecondFactor(form);
    openLink();
  } else if (!token) {
    refuse();
  }
}

async function openLink() {
  const said = byId("opening");
  if (!token) {
    said.hidden = true;
    byId("join-title").textContent = t("This link is incomplete");
    refuse();
    return;
  }
  try {
    showLink(await call("POST", "/admin/v1/links/open", { token }));
  } catch (fault) {
    byId("join-title").textContent = fault.status === 404 ? t("This link is no longer valid") : t("Something went wrong");
    byId("no-token-text").textContent =
      fault.status === 404 ? t("The link has been used or revoked, or has expired.") : fault.message;
    refuse();
  }
  said.hidden = true;
}

function showLink(link) {
  const reset = link.kind === "reset";
  byId("join-title").textContent = reset ? t("New passphrase") : t("Accept your invitation");
  byId("invited").hidden = reset;
  byId("resetting").hidden = !reset;
  byId("invited-account").textContent = link.account;
  byId("invited-role").textContent = ROLES[link.role] ?? link.role;
  for (const about of document.querySelectorAll("[data-role]")) about.hidden = about.dataset.role !== link.role;
  byId("reset-name").textContent = link.name ?? "";
  byId("join-name").hidden = reset;
  form.elements.name.disabled = reset;
  if (link.name) form.elements.name.value = link.name;
  byId("join-button").textContent = reset ? t("Set passphrase") : t("Create account");
  if (!reset && link.role !== "viewer") form.dataset.then = at("/console/connect");
  const until = byId("join-until");
  until.dateTime = link.expires_at;
  until.textContent = formatMoment(new Date(link.expires_at));
  byId("with-token").hidden = false;
  (reset ? form.elements.passphrase : form.elements.name).focus();
}
