// A new secret is shown once.
import "./moments.js";

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
