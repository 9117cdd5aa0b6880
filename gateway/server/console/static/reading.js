// The API reference and the documentation are whole without this; with it, code can be copied.

for (const code of document.querySelectorAll(".code")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet small";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.querySelector("pre").textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it by hand";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  code.prepend(button);
}

// On a phone the contents would stand before everything.
if (matchMedia("(max-width: 62rem)").matches) document.querySelector(".contents").open = false;

// A slash goes to the search, as in the console.
const search = document.getElementById("q");
if (search) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
}
