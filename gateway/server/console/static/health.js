// The books are added up from their entries when somebody asks for it.
import { call } from "./api.js";
import { toast } from "./toast.js";

const place = document.getElementById("books");
const dollars = new Intl.NumberFormat(undefined, { style: "currency", currency: "USD", maximumFractionDigits: 6 });

document.getElementById("check-books").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    const books = await call("GET", "/admin/v1/audit");
    const said = document.createElement("p");
    said.className = `notice ${books.ok ? "good" : "bad"}`;
    said.textContent = books.ok
      ? `The books agree: every balance is the sum of its entries. ${dollars.format(books.charged_usd)} charged in all, ${dollars.format(books.held_usd)} held now.`
      : `The books do not agree: ${books.problems.join("; ")}`;
    place.replaceChildren(said);
  } catch (fault) {
    toast(fault.message, "bad");
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
});
