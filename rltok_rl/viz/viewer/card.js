// The card: metrics of one byte, or of the bytes of one character.

function element(tag, words, name, properties) {
  const node = Object.assign(document.createElement(tag), properties);
  if (words !== undefined) node.textContent = words;
  if (name) node.className = name;
  return node;
}
const unknown = (value) => value === undefined || Number.isNaN(value);
const number = (value, digits = 3) => (unknown(value) ? "–" : value.toFixed(digits).replace("-", "−"));
const signed = (value, digits = 3) => (value > 0 ? "+" : "") + number(value, digits);
const probability = (p) => (p > 0 && p < 0.0005 ? "< 0.001" : number(p));
const count = (value) => value.toLocaleString("en");

// The last byte of a text is predicted, and not read: no decision follows it.
function drawnWord(seen, i) {
  if (i >= seen.decided) return "not asked";
  return seen.boundaries[i] ? (seen.forced[i] ? "forced" : "yes") : "no";
}

const ROWS = [
  ["part", "This byte", (i) => `0x${hex(text().bytes[i])}`],
  ["early_bits", "early exit, bits", number],
  ["final_bits", "whole model, bits", number],
  ["gained", "bits gained", signed],
  ["part", "A boundary after it", (i) => drawnWord(look(), i)],
  ["probability", "probability", probability],
  ["score", "score", number],
  ["reward", "reward, nats", signed],
  ["return", "return, nats", signed],
  ["advantage", "advantage, nats", signed],
];

const GLYPHS = { 9: "⇥", 10: "↵", 32: "␣" };
function named({ bytes }, start, end) {
  if (end - start === 1 && GLYPHS[bytes[start]]) return GLYPHS[bytes[start]];
  return character(bytes, start, end) ?? escaped(bytes, start, end);
}

function codePoint({ bytes }, start, end) {
  if (characterLength(bytes, start) !== end - start) return "no UTF-8";
  return "U+" + decoder.decode(bytes.subarray(start, end)).codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

// First byte of the token that a byte is in, and one beyond its last.
function tokenAround(seen, at, size) {
  let [start, end] = [at, at];
  while (start > 0 && !seen.boundaries[start - 1]) start--;
  while (end < size - 1 && !seen.boundaries[end]) end++;
  return [start, end + 1];
}

function fillCard(at) {
  const [one, seen] = [text(), look()];
  const c = characterAt(one.starts, at);
  const [start, end] = [one.starts[c], one.starts[c + 1]];
  const several = end - start > 1;
  const words = element("span");
  words.append(element("strong", several ? `bytes ${count(start)} to ${count(end - 1)}` : `byte ${count(start)}`));
  words.append(`of ${count(one.size)} · ${codePoint(one, start, end)}`);
  const head = element("div", undefined, "glyph");
  head.append(element("b", named(one, start, end)), words);
  const table = element("table");
  for (const [name, label, show] of ROWS) {
    if (name !== "part" && !seen.names.has(name)) continue;
    const row = element("tr", undefined, name === "part" ? "part" : "");
    row.append(element("th", label));
    for (let i = start; i < end; i++) {
      const shown = name === "part" ? show(i) : show(seen.numbers[name][i]);
      const now = several && i === at && label === "This byte" ? "now " : "";
      row.append(element("td", shown, now + (shown === "yes" ? "yes" : "")));
    }
    table.append(row);
  }
  const [first, last] = tokenAround(seen, at, one.size);
  const token = element("p", `token ${count(seen.tokens[at])}, ${last - first} byte${last - first === 1 ? "" : "s"} `, "token");
  token.append(element("code", tokenText(one, first, last)));
  $("card").replaceChildren(head, table, token);
}

function tokenText(one, first, last) {
  const stop = Math.min(last, first + 60);
  let shown = "";
  for (let i = first, end; i < stop; i = end) {
    end = i + (characterLength(one.bytes, i) || 1);
    if (end > last) shown += escaped(one.bytes, i, last); // a boundary splits the character
    else shown += isLayout(one.bytes[i]) ? GLYPHS[one.bytes[i]] : shownCharacter(one.bytes, i, end);
  }
  return shown.replaceAll(" ", "␣") + (stop < last ? " …" : "");
}

function showCard() {
  const card = $("card");
  const at = position();
  card.hidden = at === null;
  if (at === null) return;
  fillCard(at);
  const span = spanOf(characterAt(text().starts, at));
  const box = [...span.getClientRects()].pop() ?? span.getBoundingClientRect();
  const [below, above] = [box.bottom + 10, box.top - 10 - card.offsetHeight];
  let top = below + card.offsetHeight < innerHeight ? below : above;
  let left = Math.min(Math.max(8, box.left - 20), innerWidth - card.offsetWidth - 8);
  if (top < 8) { // a low window: beside the character, on the side with room
    top = Math.max(8, innerHeight - card.offsetHeight - 8);
    const [right, before] = [box.right + 12, box.left - 12 - card.offsetWidth];
    left = right + card.offsetWidth < innerWidth ? right : Math.max(8, before);
  }
  card.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

// A line for screen readers.
function say(at) {
  const [one, seen] = [text(), look()];
  const c = characterAt(one.starts, at);
  const { probability: p, reward, final_bits: bits } = seen.numbers;
  const parts = [`byte ${at}`, named(one, one.starts[c], one.starts[c + 1]), `boundary ${drawnWord(seen, at)}`];
  if (!unknown(p?.[at])) parts.push(`probability ${probability(p[at])}`);
  if (!unknown(bits?.[at])) parts.push(`${number(bits[at], 2)} bits`);
  if (!unknown(reward?.[at])) parts.push(`reward ${number(reward[at], 2)}`);
  $("said").textContent = parts.join(", ");
}
