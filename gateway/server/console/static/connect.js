// The snippets: a new key and the chosen model are filled in, here alone. The key's secret is nowhere else.
import { at, call } from "./api.js";
import { watchModel } from "./model.js";

const byId = (id) => document.getElementById(id);

// As the server writes it (console/connect.py): what stands between the quotes of each language.
const quotes = {
  "": (text) => text,
  json: (text) => JSON.stringify(text).slice(1, -1),
  "shell-json": (text) => JSON.stringify(text).slice(1, -1).replaceAll("'", "'\\''"),
  shell: (text) => text.replaceAll("'", "'\\''"),
  opencode: (text) => JSON.stringify(text).slice(1, -1).replaceAll("{", "\\u007b"),
};

function fill(what, text) {
  for (const place of document.querySelectorAll(`[data-fill=${what}]`)) {
    place.textContent = quotes[place.dataset.quote ?? ""](text);
    place.classList.toggle("filled", what === "key");
  }
}

const trial = byId("trial");
if (trial) {
  const model = watchModel(trial);
  model.onChange(() => fill("model", model.read() || "MODEL"));
}

async function makeKey(name, account) {
  try {
    return await call("POST", "/admin/v1/keys", { name, account });
  } catch (fault) {
    if (fault.status !== 409) throw fault;
    return call("POST", "/admin/v1/keys", { name: `${name} ${Date.now().toString(36)}`, account }); // made meanwhile
  }
}

byId("make-key")?.addEventListener("click", async (event) => {
  const button = event.currentTarget;
  const error = byId("make-key-error");
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  error.hidden = true;
  try {
    show(await makeKey(button.dataset.name, button.dataset.account));
  } catch (fault) {
    error.textContent = fault.message;
    error.hidden = false;
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
});

function show(key) {
  fill("key", key.secret);
  byId("made-name").textContent = key.name;
  byId("made-link").href = at(`/console/keys/${encodeURIComponent(key.id)}`);
  byId("no-key-yet").hidden = true;
  byId("key-made").hidden = false;
  const select = trial.elements.key;
  if (!select.value) select.replaceChildren();
  select.append(new Option(`${key.name} (${key.key})`, String(key.id), true, true));
  select.disabled = false;
  byId("trial-send").disabled = false;
  byId("trial-needs-key")?.remove();
}
