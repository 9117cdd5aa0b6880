// Passkeys, and the second factor, step by step: the passphrase, the code of an authenticator, the recovery codes.
import { call } from "./api.js";
import { clearFaults } from "./faults.js";
import { showFault } from "./forms.js";
import { addPasskey, isSupported } from "./passkeys.js";
import "./passphrase.js";
import { t } from "./language.js";

const byId = (id) => document.getElementById(id);

function onSubmit(form, perform) {
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    clearFaults(form);
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
    try {
      await perform();
    } catch (fault) {
      showFault(form, fault);
    }
    button.disabled = false;
    button.removeAttribute("aria-busy");
  });
}

// Drawn to stand in a page, it is shown as an image: nothing in it can be more than that.
function writeImage(svg) {
  const alone = svg.includes("xmlns=") ? svg : svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"');
  return `data:image/svg+xml,${encodeURIComponent(alone)}`;
}

onSubmit(byId("add-passkey"), async () => {
  if (!isSupported()) throw new Error(t("This browser does not support passkeys"));
  await addPasskey(byId("passkey-name").value, byId("passkey-passphrase").value);
  location.assign(byId("add-passkey").dataset.then);
});

byId("enrol")?.addEventListener("click", (event) => {
  event.currentTarget.hidden = true;
  byId("enrol-steps").hidden = false;
  byId("enrol-now").focus();
});

onSubmit(byId("enrol-passphrase"), async () => {
  const pending = await call("POST", "/admin/v1/session/second-factor", { passphrase: byId("enrol-now").value });
  byId("enrol-qr").src = writeImage(pending.qr_svg);
  byId("enrol-secret").textContent = pending.secret;
  const link = byId("enrol-link");
  if (/^otpauth:\/\//.test(pending.uri)) link.href = pending.uri;
  else link.hidden = true;
  byId("enrol-passphrase").hidden = true;
  byId("enrol-code").hidden = false;
  byId("enrol-digits").focus();
});

onSubmit(byId("enrol-confirm"), async () => {
  const code = byId("enrol-digits").value.replaceAll(/\s/g, "");
  const { recovery_codes: codes } = await call("POST", "/admin/v1/session/second-factor/confirm", { code });
  const list = byId("recovery-codes");
  for (const one of codes) {
    const line = document.createElement("li");
    line.className = "mono";
    line.textContent = one;
    list.append(line);
  }
  const text = `${codes.join("\n")}\n`;
  byId("recovery-text").value = text;
  byId("recovery-file").href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const state = byId("factor-state").firstElementChild;
  state.className = "badge good";
  state.textContent = t("on");
  byId("enrol-code").hidden = true;
  byId("enrol-done").hidden = false;
});
