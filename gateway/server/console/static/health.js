// The ledger is added up from its entries when an operator asks for it.
import { call } from "./api.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

const place = document.getElementById("books");
const dollars = new Intl.NumberFormat("en-US", { style: "currency", currency: "USD", maximumFractionDigits: 6 });

document.getElementById("check-books").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    const books = await call("GET", "/admin/v1/audit");
    const said = document.createElement("p");
    said.className = `notice ${books.ok ? "good" : "bad"}`;
    said.textContent = books.ok
      ? t("The ledger is consistent: every balance is the sum of its entries. {charged} charged in total, {held} reserved now.", {
        charged: dollars.format(books.charged_usd),
        held: dollars.format(books.held_usd),
      })
      : t("The ledger is not consistent: {problems}", { problems: books.problems.join("; ") });
    place.replaceChildren(said);
  } catch (fault) {
    toast(fault.message, "bad");
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
});
