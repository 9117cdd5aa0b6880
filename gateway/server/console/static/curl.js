// A call as a line for a shell.
const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const HEAD = '-H "Authorization: Bearer $GATEWAY_KEY"';

function join(parts) {
  return parts.join(" \\\n  ");
}

const MAX_ARGUMENT = 64 * 1024; // characters; Linux takes 128 KB in one argument

// A long body comes by standard input, from lines that the shell does not read.
export function writeJsonCurl(url, body, flags = "") {
  const text = JSON.stringify(body);
  const head = [`curl ${flags}${quote(url)}`, HEAD, '-H "Content-Type: application/json"'];
  if (text.length <= MAX_ARGUMENT) return join([...head, `-d ${quote(text)}`]);
  return `${join([...head, "--data-binary @- <<'END'"])}\n${text}\nEND`;
}

// `files`: pairs of a field and a file's name.
export function writeFormCurl(url, fields, files) {
  const texts = Object.entries(fields).map(([name, value]) => `--form-string ${quote(`${name}=${value}`)}`);
  const named = files.map(([name, file]) => `-F ${quote(`${name}=@"${file.replaceAll(/["\\]/g, "_")}"`)}`);
  return join([`curl ${quote(url)}`, HEAD, ...texts, ...named]);
}

export function showCurl(text) {
  document.getElementById("curl-text").textContent = text;
  document.getElementById("as-curl").showModal();
}
