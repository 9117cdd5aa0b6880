// A request as a piece of code to take away: curl, Python or JavaScript.
import { writeJsonCurl } from "./curl.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

const LITERALS = { true: "True", false: "False", null: "None" };

// JSON as Python writes it. A string of JSON is one of Python, too.
export function writePythonValue(value) {
  if (Array.isArray(value)) return `[${value.map(writePythonValue).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${writePythonValue(one)}`).join(", ")}}`;
  }
  const text = JSON.stringify(value);
  return LITERALS[text] ?? text;
}

function writePython(url, body) {
  return [
    "import os\nimport httpx\n\nresponse = httpx.post(",
    `    ${JSON.stringify(url)},`,
    `    headers={"Authorization": f"Bearer {os.environ['GATEWAY_KEY']}"},`,
    `    json=${writePythonValue(body)},`,
    "    timeout=600,",
    ")",
    "response.raise_for_status()",
    "print(response.text)",
    "",
  ].join("\n");
}

function writeJavaScript(url, body) {
  return `const response = await fetch(${JSON.stringify(url)}, {
  method: "POST",
  headers: { "Authorization": \`Bearer \${process.env.GATEWAY_KEY}\`, "Content-Type": "application/json" },
  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),
});
console.log(await response.text());
`;
}

const WRITERS = {
  curl: (url, body) => `${writeJsonCurl(url, body, body.stream ? "-N " : "")}\n`,
  python: writePython,
  javascript: writeJavaScript,
};

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy-as]");
  if (!button) return;
  const { url, body } = JSON.parse(button.closest("[data-code]").dataset.code);
  try {
    await navigator.clipboard.writeText(WRITERS[button.dataset.copyAs](url, body));
    toast(t("Copied, with a sample prompt. Set GATEWAY_KEY to an API key."));
  } catch {
    toast(t("This browser cannot copy here: select the text and copy it"), "bad");
  }
});
