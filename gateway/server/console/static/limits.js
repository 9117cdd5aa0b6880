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
