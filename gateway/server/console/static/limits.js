// The form of a limit: what it is of is a kind, and for tags and models a name beside it.
import "./moments.js";

for (const form of document.querySelectorAll("form[data-limit]")) {
  const kind = form.querySelector("[data-kind]");
  if (!kind) continue; // a limit that raises another has no subjects of its own
  const detail = form.querySelector("[data-detail]");
  const place = detail.closest("[data-detail-of]");
  const update = () => {
    const takesDetail = place.dataset.detailOf.split(" ").includes(kind.value);
    place.hidden = !takesDetail;
    detail.required = takesDetail;
    form.elements.namedItem("of").value = takesDetail ? `${kind.value}:${detail.value.trim()}` : kind.value;
  };
  kind.addEventListener("change", update);
  detail.addEventListener("input", update);
  update();
}

// The end of a raise, in the reader's time zone: the last minute of a day.
function findEnd(name) {
  const end = new Date();
  if (name === "friday") end.setDate(end.getDate() + ((5 - end.getDay() + 7) % 7));
  if (name === "month") end.setMonth(end.getMonth() + 1, 0);
  const two = (number) => String(number).padStart(2, "0");
  return `${end.getFullYear()}-${two(end.getMonth() + 1)}-${two(end.getDate())}T23:59`;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-until]");
  if (button) button.form.elements.namedItem("until").value = findEnd(button.dataset.until);
});
