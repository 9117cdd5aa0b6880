// A new secret is shown once; a moment is edited in the reader's own zone.
for (const field of document.querySelectorAll("input[data-moment]")) {
  const moment = new Date(field.dataset.moment);
  if (Number.isNaN(moment.getTime())) continue;
  const local = new Date(moment.getTime() - moment.getTimezoneOffset() * 60000);
  field.defaultValue = local.toISOString().slice(0, 16);
}

const overlap = document.getElementById("overlap");
if (overlap) overlap.dataset.as = "number";

for (const id of ["new-key-form", "rotate-form"]) {
  document.getElementById(id)?.addEventListener("done", (event) => {
    event.target.closest("dialog").close();
    const dialog = document.getElementById("secret-dialog");
    document.getElementById("secret-text").textContent = event.detail.secret;
    dialog.addEventListener("close", () => location.reload(), { once: true });
    dialog.showModal();
  });
}
