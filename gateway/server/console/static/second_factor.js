// The code of a second factor is asked for when everything else is right and there is one.
export function watchSecondFactor(form) {
  const part = form.querySelector("[data-second-factor]");
  const code = part.querySelector("input");
  const wrong = form.querySelector("[data-error]");

  const askForCode = (wanted) => {
    part.hidden = !wanted;
    code.disabled = !wanted;
    code.value = "";
    if (wanted) code.focus();
  };

  form.addEventListener("fault", (event) => {
    if (event.detail.code === "second_factor_needed") {
      if (part.hidden) wrong.hidden = true; // it is no fault yet
      askForCode(true);
    } else if (event.detail.code === "wrong_passphrase" && !part.hidden) {
      code.select();
    }
  });

  // Another name or passphrase begins anew.
  for (const name of ["name", "passphrase"]) {
    form.elements.namedItem(name)?.addEventListener("input", () => {
      if (!part.hidden) askForCode(false);
    });
  }
}
