// Before anything is drawn: the reader's own choice of light or dark, where there is one.
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") {
  document.documentElement.dataset.theme = chosen;
}
