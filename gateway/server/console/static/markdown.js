// Markdown of a model's answer as elements: headings, paragraphs, lists, quotes, tables, code, emphasis and links.
// Only text nodes and elements are made: markup in an answer stays text. A link goes to http, https or mailto.

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s*>\s?(.*)$/;
const RULE = { test: (line) => /^([-*_])\1{2,}$/.test(line.replace(/\s+/g, "")) };
const MARK = /[`*_~[]/g;
const LABEL = /\[([^[\]]+)\]\(/y;
const TARGET = /([^\s()]+)\)/y;
const SAFE = /^(https?:|mailto:)/i;
const DEEPEST = 8;
const MOST_COLUMNS = 64;

// Children, and lists of them: one at a time, because the arguments of a call have to fit on the stack.
function make(name, ...children) {
  const element = document.createElement(name);
  for (const child of children.flat()) element.append(child);
  return element;
}

// Every search goes on where the one before ended: the time grows with the text's length, whatever its marks are.
// Asked with growing places, these return the place of the next mark that can close, or Infinity.
function closers(text, mark) {
  let at = -1;
  return (from) => {
    while (at < from || (at < Infinity && /\s/.test(text[at - 1]))) {
      at = text.indexOf(mark, Math.max(at + 1, from));
      if (at < 0) at = Infinity;
    }
    return at;
  };
}

function runs(text) {
  const places = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!places.has(run.length)) places.set(run.length, { at: 0, all: [] });
    places.get(run.length).all.push(index);
  }
  return (length, from) => {
    const found = places.get(length);
    while (found.at < found.all.length && found.all[found.at] < from) found.at += 1;
    return found.all[found.at] ?? Infinity;
  };
}

// Each finder returns the element that begins at a place and where it ends; undefined if none begins there.
function findCode(text, at, find) {
  let begin = at;
  while (text[begin] === "`") begin += 1;
  const end = find.code(begin - at, begin);
  const inside = end < Infinity ? text.slice(begin, end) : "";
  return inside ? [make("code", inside.trim() || inside), end + begin - at] : [text.slice(at, begin), begin];
}

function findPair(text, at, mark, name, close, depth) {
  if (!text.startsWith(mark, at) || !/\S/.test(text[at + 2] ?? " ")) return undefined;
  const end = close(at + 3);
  return end < Infinity ? [make(name, renderInline(text.slice(at + 2, end), depth)), end + 2] : undefined;
}

function findEmphasis(text, at, mark, depth) {
  const end = text.indexOf(mark, at + 1);
  const word = (place) => mark === "_" && /\w/.test(text[place] ?? "");
  if (end < at + 2 || /\s/.test(text[at + 1]) || /\s/.test(text[end - 1]) || word(at - 1) || word(end + 1)) return undefined;
  if (mark === "*" && text[end + 1] === "*") return undefined;
  return [make("em", renderInline(text.slice(at + 1, end), depth)), end + 1];
}

function findLink(text, at, depth) {
  LABEL.lastIndex = at;
  const label = LABEL.exec(text)?.[1];
  if (label === undefined) return undefined;
  TARGET.lastIndex = LABEL.lastIndex;
  const target = TARGET.exec(text)?.[1];
  if (target === undefined) return undefined;
  const end = TARGET.lastIndex;
  if (!SAFE.test(target)) return [text.slice(at, end), end];
  const link = make("a", renderInline(label, depth));
  link.href = target;
  link.rel = "noreferrer noopener nofollow";
  link.target = "_blank";
  return [link, end];
}

function findMark(text, at, find, depth) {
  const mark = text[at];
  if (mark === "`") return findCode(text, at, find);
  if (mark === "[") return findLink(text, at, depth);
  if (mark === "~") return findPair(text, at, "~~", "del", find.struck, depth);
  return (mark === "*" && findPair(text, at, "**", "strong", find.strong, depth)) || findEmphasis(text, at, mark, depth);
}

function renderInline(text, depth = 0) {
  if (depth >= DEEPEST) return [text];
  const find = { code: runs(text), strong: closers(text, "**"), struck: closers(text, "~~") };
  const parts = [];
  let done = 0;
  let at = 0;
  for (;;) {
    MARK.lastIndex = at;
    const mark = MARK.exec(text);
    if (!mark) break;
    at = mark.index;
    const found = findMark(text, at, find, depth + 1);
    if (!found) {
      at += 1;
      continue;
    }
    if (done < at) parts.push(text.slice(done, at));
    parts.push(found[0]);
    done = at = found[1];
  }
  if (done < text.length) parts.push(text.slice(done));
  return parts;
}

function readCode(lines, at, fence) {
  const close = fence[1];
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(close) && !lines[end].trim().slice(close.length).replaceAll(close[0], ""))) end += 1;
  const block = make("pre", make("code", lines.slice(at + 1, end).join("\n")));
  block.tabIndex = 0;
  return [block, end + 1];
}

function readItems(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const list = make(ordered ? "ol" : "ul");
  if (ordered && Number.parseInt(mark, 10) !== 1) list.start = Number.parseInt(mark, 10);
  let here = at;
  while (here < lines.length) {
    const found = ITEM.exec(lines[here]);
    if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== ordered) break;
    const own = [found[3]];
    for (here += 1; here < lines.length; here += 1) {
      const line = lines[here];
      const inside = /^\s*/.exec(line)[0].length > indent.length;
      if (line.trim() ? !inside : !/^\s/.test(lines[here + 1] ?? "")) break;
      own.push(line.slice(Math.min(indent.length + 2, /^\s*/.exec(line)[0].length)));
    }
    const parts = renderBlocks(own, depth + 1);
    list.append(make("li", ...(parts.length && parts[0].localName === "p" ? [[...parts[0].childNodes], parts.slice(1)] : [parts])));
    while (here + 1 < lines.length && !lines[here].trim() && ITEM.test(lines[here + 1])) here += 1;
  }
  return [list, here];
}

const splitCells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

const isTableRule = (line) => line.includes("|") && splitCells(line).every((cell) => /^:?-+:?$/.test(cell));

function readTable(lines, at) {
  const heads = splitCells(lines[at]).slice(0, MOST_COLUMNS);
  const body = make("tbody");
  let here = at + 2;
  for (; here < lines.length && lines[here].includes("|"); here += 1) {
    const cells = splitCells(lines[here]);
    body.append(make("tr", cells.slice(0, heads.length).map((cell) => make("td", renderInline(cell)))));
  }
  const head = make("thead", make("tr", heads.map((cell) => make("th", renderInline(cell)))));
  return [make("table", head, body), here];
}

function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && ![FENCE, HEADING, ITEM, QUOTE, RULE].some((rule) => rule.test(lines[end]))) end += 1;
  const parts = lines.slice(at, end).flatMap((line, index) => [...(index ? [make("br")] : []), ...renderInline(line.trim())]);
  return [make("p", parts), end];
}

function readQuote(lines, at, depth) {
  const own = [];
  let end = at;
  for (let found; end < lines.length && (found = QUOTE.exec(lines[end])); end += 1) own.push(found[1]);
  return [make("blockquote", renderBlocks(own, depth + 1)), end];
}

function stripHashes(text) {
  const whole = text.trimEnd();
  let end = whole.length;
  while (whole[end - 1] === "#") end -= 1;
  return whole.slice(0, end).trimEnd();
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return readCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [make(`h${Math.min(heading[1].length + 2, 6)}`, renderInline(stripHashes(heading[2]))), at + 1];
  if (RULE.test(line)) return [make("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return readQuote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return readItems(lines, at, depth);
  if (line.includes("|") && isTableRule(lines[at + 1] ?? "")) return readTable(lines, at);
  return readParagraph(lines, at);
}

function renderBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = readBlock(lines, at, depth);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

// Every line end that "." does not match: a rule's ".*$" would otherwise be tried at each space before one.
export function renderMarkdown(text) {
  return renderBlocks(text.split(/\r\n?|[\n\u2028\u2029]/), 0);
}
