// Signing in: with the passphrase and the second factor where there is one, or with a passkey alone.
import "./passphrase.js";
import { isSupported, signIn } from "./passkeys.js";
import { watchSecondFactor } from "./second_factor.js";

const form = document.getElementById("sign-in");
const alone = document.querySelector("[data-passkeys]");

if (form) watchSecondFactor(form);

async function press(button, place, body) {
  place.hidden = true;
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    const answer = await signIn(body);
    location.assign(answer?.continue_at ?? form.dataset.then);
  } catch (fault) {
    place.textContent = fault.message;
    place.hidden = false;
    button.disabled = false;
  }
  button.removeAttribute("aria-busy");
}

if (alone && isSupported()) {
  const button = alone.querySelector("[data-passkey]");
  alone.hidden = false;
  button.addEventListener("click", () => press(button, alone.querySelector("[data-passkey-error]"), {}));
}

form?.querySelector("[data-second-passkey]")?.addEventListener("click", (event) => {
  const [name, passphrase] = ["name", "passphrase"].map((one) => form.elements.namedItem(one).value);
  press(event.currentTarget, form.querySelector("[data-error]"), { name, passphrase });
});
