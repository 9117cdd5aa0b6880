// The second factor is asked for when everything else is right and there is one: a code, a passkey, or either.
export function watchSecondFactor(form) {
  const part = form.querySelector("[data-second-factor]");
  const code = part.querySelector("input");
  const wrong = form.querySelector("[data-error]");

  const submit = form.querySelector("[type=submit]");

  // `wanted`: "passkey", "passkey_or_code", or "code"; empty: nothing.
  const askFor = (wanted) => {
    const takesCode = wanted.endsWith("code");
    part.hidden = !wanted;
    code.disabled = !takesCode;
    code.value = "";
    for (const one of part.querySelectorAll("[data-for-code]")) one.hidden = !takesCode;
    for (const one of part.querySelectorAll("[data-for-passkey]")) one.hidden = !wanted.startsWith("passkey");
    submit.hidden = wanted === "passkey";
    if (takesCode) code.focus();
    else if (wanted) part.querySelector("[data-second-passkey]")?.focus();
  };

  form.addEventListener("fault", (event) => {
    if (event.detail.code === "second_factor_needed") {
      if (part.hidden) wrong.hidden = true; // it is no fault yet
      askFor(event.detail.param ?? "code");
    } else if (event.detail.code === "wrong_passphrase" && !part.hidden) {
      code.select();
    }
  });

  // Another name or passphrase begins anew.
  for (const name of ["name", "passphrase"]) {
    form.elements.namedItem(name)?.addEventListener("input", () => {
      if (!part.hidden) askFor("");
    });
  }
}
