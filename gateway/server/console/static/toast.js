// A word at the edge of the page, which goes away by itself.
export function toast(text, tone = "good") {
  const place = document.getElementById("toasts");
  const word = document.createElement("p");
  word.className = `toast ${tone}`;
  word.textContent = text;
  place.append(word);
  setTimeout(() => word.remove(), tone === "bad" ? 8000 : 3000);
}
