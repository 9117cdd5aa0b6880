// Forms that send themselves: what was wrong before is no longer said when they are sent again.
export function clearFaults(form) {
  for (const error of form.querySelectorAll(".error")) error.hidden = true;
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}
