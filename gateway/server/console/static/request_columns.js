// The columns of the list: a cookie has them, so that the server writes no others.
import { at } from "./api.js";

const form = document.getElementById("choose-columns");

function keep(names, maxAge) {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `${form.dataset.cookie}=${names.join(".")}; Path=${at("/console")}; Max-Age=${maxAge}; SameSite=Lax${secure}`;
  location.reload();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const names = [...form.querySelectorAll("input:checked")].map((box) => box.name);
  keep(["time", ...names], 31_536_000);
});
document.getElementById("usual-columns").addEventListener("click", () => keep([], 0));
