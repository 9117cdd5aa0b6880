// A call as a line for a shell.
const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const HEAD = '-H "Authorization: Bearer $GATEWAY_KEY"';

function join(parts) {
  return parts.join(" \\\n  ");
}

export function writeJsonCurl(url, body, flags = "") {
  return join([`curl ${flags}${quote(url)}`, HEAD, '-H "Content-Type: application/json"', `-d ${quote(JSON.stringify(body))}`]);
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
