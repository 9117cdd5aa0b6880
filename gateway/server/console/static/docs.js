// The API reference without this is whole; with it, it can be filtered.

const filter = document.getElementById("filter");
const count = document.getElementById("filter-count");
const operations = [...document.querySelectorAll(".operation")].map((card) => ({
  card,
  words: card.textContent.toLowerCase(),
}));

function show() {
  const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { card, words } of operations) {
    card.hidden = !wanted.every((word) => words.includes(word));
    shown += card.hidden ? 0 : 1;
  }
  for (const chapter of document.querySelectorAll(".chapter")) {
    chapter.hidden = !chapter.querySelector(".operation:not([hidden])");
    document.querySelector(`[data-chapter="${chapter.id}"]`).hidden = chapter.hidden;
  }
  for (const part of document.querySelectorAll(".part")) part.hidden = !part.querySelector(".chapter:not([hidden])");
  for (const part of document.querySelectorAll(".part-of")) part.hidden = !part.querySelector("li:not([hidden])");
  for (const other of document.querySelectorAll(".whole")) other.hidden = wanted.length > 0;
  document.getElementById("nothing").hidden = shown > 0;
  count.textContent = wanted.length ? `${shown} of ${operations.length} operations` : "";
}

filter.addEventListener("input", show);
filter.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  filter.value = "";
  show();
});
document.getElementById("filter-field").hidden = false;

// A slash goes to the filter, as in most references.
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    filter.focus();
  }
});

// What a link leads to is open when one comes to it.
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.classList.contains("operation")) {
    for (const part of target.querySelectorAll(":scope > details")) part.open = true;
  }
}
addEventListener("hashchange", unfold);
unfold();
