// A request as code: a line for a shell, or a program in three languages.
import { writeJsonCurl } from "./curl.js";

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
  return `import json
import os
import urllib.request

body = ${writePythonValue(body)}
headers = {"Authorization": f"Bearer {os.environ['GATEWAY_KEY']}", "Content-Type": "application/json"}
request = urllib.request.Request(${JSON.stringify(url)}, json.dumps(body).encode(), headers)
with urllib.request.urlopen(request, timeout=600) as response:
    print(response.read().decode())
`;
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

// A string of JSON is one of Go, too, but for the byte order mark.
const writeGoString = (text) => JSON.stringify(text).replaceAll("\uFEFF", "\\uFEFF");

function writeGo(url, body) {
  return `package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

func main() {
	body := strings.NewReader(${writeGoString(JSON.stringify(body))})
	request, err := http.NewRequest("POST", ${writeGoString(url)}, body)
	if err != nil {
		panic(err)
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("GATEWAY_KEY"))
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}
`;
}

export const WRITERS = {
  curl: (url, body) => `${writeJsonCurl(url, body, body.stream ? "-N " : "")}\n`,
  python: writePython,
  javascript: writeJavaScript,
  go: writeGo,
};
