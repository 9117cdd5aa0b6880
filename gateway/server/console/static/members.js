// A link that lets somebody in is shown once.
import { tellTimes } from "./console.js";

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
