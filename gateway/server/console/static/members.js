// The dialog of a member, and a link that lets somebody in, which is shown once.
import { tellTimes } from "./console.js";
import { clearErrors } from "./forms.js";

// One dialog serves all members of the page: the button that opens it has the member.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-member]");
  if (!button) return;
  const dialog = document.getElementById("member"), form = dialog.querySelector("form");
  const member = JSON.parse(button.dataset.member);
  dialog.querySelector("h2").textContent = member.name;
  for (const one of dialog.querySelectorAll("[data-call]")) {
    one.dataset.pattern ??= one.dataset.call;
    one.dataset.call = one.dataset.pattern.replace("{id}", member.id);
  }
  for (const option of form.querySelectorAll("option")) option.defaultSelected = option.value === member[option.parentElement.name];
  form.elements.may_read_bodies.defaultChecked = member.may_read_bodies;
  form.reset();
  clearErrors(form);
  for (const one of dialog.querySelectorAll("[data-of]")) one.hidden = !member[one.dataset.of];
});

document.addEventListener("done", (event) => {
  if (!event.target.matches(".link-form, .link-button")) return;
  event.target.closest("dialog")?.close();
  document.getElementById("link-text").textContent = event.detail.url;
  const until = document.getElementById("link-until");
  until.dateTime = event.detail.expires_at;
  tellTimes();
  const dialog = document.getElementById("link-dialog");
  dialog.addEventListener("close", () => location.reload(), { once: true });
  dialog.showModal();
});
