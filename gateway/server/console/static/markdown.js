// Markdown of a model's answer as elements: headings, paragraphs, lists, quotes, tables, code, emphasis and links.
// Only text nodes and elements are made: markup in an answer stays text. A link goes to http, https or mailto.

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s*>\s?(.*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE =
  /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|\*(?=[^\s*])([^*]*[^\s*])\*(?!\*)|(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)|~~(?=\S)([\s\S]*?\S)~~|\[([^\[\]]+)\]\(([^\s()]+)\)/;
const SAFE = /^(https?:|mailto:)/i;
const DEEPEST = 8;

function make(name, ...children) {
  const element = document.createElement(name);
  element.append(...children);
  return element;
}

function renderInline(text, depth = 0) {
  const parts = [];
  let rest = text;
  while (rest) {
    const found = depth < DEEPEST ? INLINE.exec(rest) : null;
    if (!found) break;
    if (found.index) parts.push(rest.slice(0, found.index));
    parts.push(renderMark(found, depth + 1));
    rest = rest.slice(found.index + found[0].length);
  }
  if (rest) parts.push(rest);
  return parts;
}

function renderMark([whole, , code, strong, starred, underlined, struck, label, target], depth) {
  if (code !== undefined) return make("code", code.trim() || code);
  if (strong !== undefined) return make("strong", ...renderInline(strong, depth));
  if (starred !== undefined) return make("em", ...renderInline(starred, depth));
  if (underlined !== undefined) return make("em", ...renderInline(underlined, depth));
  if (struck !== undefined) return make("del", ...renderInline(struck, depth));
  if (!SAFE.test(target)) return whole;
  const link = make("a", ...renderInline(label, depth));
  link.href = target;
  link.rel = "noreferrer noopener nofollow";
  link.target = "_blank";
  return link;
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
    list.append(make("li", ...(parts.length && parts[0].localName === "p" ? [...parts[0].childNodes, ...parts.slice(1)] : parts)));
    while (here + 1 < lines.length && !lines[here].trim() && ITEM.test(lines[here + 1])) here += 1;
  }
  return [list, here];
}

const splitCells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function readTable(lines, at) {
  const heads = splitCells(lines[at]);
  const body = make("tbody");
  let here = at + 2;
  for (; here < lines.length && lines[here].includes("|"); here += 1) {
    const cells = splitCells(lines[here]);
    body.append(make("tr", ...heads.map((_, index) => make("td", ...renderInline(cells[index] ?? "")))));
  }
  const head = make("thead", make("tr", ...heads.map((cell) => make("th", ...renderInline(cell)))));
  return [make("table", head, body), here];
}

function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && ![FENCE, HEADING, ITEM, QUOTE, RULE].some((rule) => rule.test(lines[end]))) end += 1;
  const parts = lines.slice(at, end).flatMap((line, index) => [...(index ? [make("br")] : []), ...renderInline(line.trim())]);
  return [make("p", ...parts), end];
}

function readQuote(lines, at, depth) {
  const own = [];
  let end = at;
  for (let found; end < lines.length && (found = QUOTE.exec(lines[end])); end += 1) own.push(found[1]);
  return [make("blockquote", ...renderBlocks(own, depth + 1)), end];
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return readCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [make(`h${Math.min(heading[1].length + 2, 6)}`, ...renderInline(heading[2])), at + 1];
  if (RULE.test(line)) return [make("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return readQuote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return readItems(lines, at, depth);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("|")) return readTable(lines, at);
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

export function renderMarkdown(text) {
  return renderBlocks(text.split(/\r?\n/), 0);
}
