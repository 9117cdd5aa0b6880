// The second factor, step by step: the passphrase, the code of an authenticator, the recovery codes.
import { call } from "./api.js";
import { showFault } from "./forms.js";
import "./passphrase.js";

const byId = (id) => document.getElementById(id);

function onSubmit(form, perform) {
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    for (const error of form.querySelectorAll(".error")) error.hidden = true;
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

byId("enrol")?.addEventListener("click", (event) => {
  event.currentTarget.hidden = true;
  byId("enrol-steps").hidden = false;
  byId("enrol-now").focus();
});

onSubmit(byId("enrol-passphrase"), async () => {
  const pending = await call("POST", "/admin/v1/session/second-factor", { passphrase: byId("enrol-now").value });
  byId("enrol-qr").src = `data:image/svg+xml,${encodeURIComponent(pending.qr_svg)}`; // a picture, never part of the page
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
  byId("enrol-code").hidden = true;
  byId("enrol-done").hidden = false;
});
