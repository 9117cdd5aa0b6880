// The second factor is asked for when the passphrase was right and there is one.
const form = document.getElementById("sign-in");
form.addEventListener("fault", (event) => {
  if (event.detail.code === "second_factor_needed") {
    const part = document.getElementById("second-factor");
    part.hidden = false;
    part.querySelector("input").focus();
  }
});
