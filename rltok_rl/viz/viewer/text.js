// The text in pieces: plain far from the view, a coloured span per character near it.

const LEVELS = 24;
const PIECE = 1500; // characters; a piece ends at the next new line
const LONGEST = 4000; // or here, after a space if there is one near
const LONG_TEXT = 300000; // bytes from which on pieces out of sight are not laid out

const $ = (id) => document.getElementById(id);
const content = JSON.parse($("content").textContent);
const { texts } = content;
const state = { text: 0, segmenter: 0, look: 0, mode: "probability", cursor: null, hover: null };
const text = () => texts[state.text];
const segmenter = () => text().segmenters[state.segmenter];
const look = () => opened(segmenter().looks[state.look]);

// A text is unpacked when it is first shown, and so are the metrics of each segmenter.
function unpackText(one) {
  if (one.bytes) return;
  one.bytes = unpackBytes(one.data);
  one.starts = characterStarts(one.bytes);
  one.scales = {};
  for (const seen of one.segmenters.flatMap(({ looks }) => looks)) {
    seen.names = new Set(Object.keys(seen.numbers));
    if (seen.names.has("early_bits") && seen.names.has("final_bits")) seen.names.add("gained");
  }
}

function opened(seen) {
  if (seen.tokens) return seen;
  const { size } = text();
  seen.boundaries = unpackBits(seen.boundaries, size);
  seen.forced = unpackBits(seen.forced, size);
  for (const name of Object.keys(seen.numbers)) seen.numbers[name] = unpackNumbers(seen.numbers[name]);
  const { early_bits: early, final_bits: final } = seen.numbers;
  if (seen.names.has("gained")) seen.numbers.gained = early.map((bits, i) => bits - final[i]);
  seen.tokens = new Uint32Array(size); // tokens that ended before each byte
  for (let i = 1; i < size; i++) seen.tokens[i] = seen.tokens[i - 1] + seen.boundaries[i - 1];
  return seen;
}

const MODES = {
  probability: { key: "p", name: "Probability", of: "probability", kind: "share" },
  tokens: { key: "t", name: "Tokens", of: null, kind: "tokens" },
  reward: { key: "r", name: "Reward", of: "reward", kind: "signed", unit: "nats" },
  advantage: { key: "a", name: "Advantage", of: "advantage", kind: "signed", unit: "nats" },
  gained: { key: "g", name: "Bits gained", of: "gained", kind: "signed", unit: "bits" },
  bits: { key: "b", name: "Bits", of: "final_bits", kind: "amount", unit: "bits" },
  score: { key: "s", name: "Score", of: "score", kind: "range" },
};
const hasMode = (mode) => MODES[mode].of === null || segmenter().looks[state.look].names.has(MODES[mode].of);
// The colours that can be shown: a rule has no probabilities, an early snapshot no rewards.
const shownMode = () => (hasMode(state.mode) ? state.mode : hasMode("probability") ? "probability" : "tokens");

// One scale for all segmenters of a text, so that they compare: all but the outermost hundredth fits.
function scaleOf(mode) {
  const { of, kind } = MODES[mode];
  const { scales, segmenters } = text();
  if (kind === "share") return [0, 1];
  if (mode in scales) return scales[mode];
  const values = [];
  for (const seen of segmenters.flatMap((who) => who.looks).filter(({ names }) => names.has(of))) {
    const numbers = opened(seen).numbers[of];
    const stride = Math.max(1, Math.floor(numbers.length / 20000));
    for (let i = 0; i < numbers.length; i += stride) values.push(kind === "signed" ? Math.abs(numbers[i]) : numbers[i]);
  }
  const known = values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  const high = known[Math.floor(0.99 * (known.length - 1))] || 1;
  return (scales[mode] = kind === "range" ? [known[0] ?? 0, high] : [kind === "signed" ? -high : 0, high]);
}

// The class of a value's colour.
function colour(value, kind, low, high) {
  if (Number.isNaN(value)) return "";
  const share = kind === "signed" ? value / high : (value - low) / (high - low || 1);
  return colourClass(Math.max(-LEVELS, Math.min(LEVELS, Math.sign(share) * Math.round(LEVELS * Math.abs(share)))), kind);
}

// s for amounts, u and d for positive and negative values.
function colourClass(level, kind) {
  return level === 0 ? "" : (kind !== "signed" ? "s" : level > 0 ? "u" : "d") + Math.abs(level);
}

const sheet = document.styleSheets[0];
for (const [letter, name] of [["s", "seq"], ["u", "pos"], ["d", "neg"]]) {
  for (let level = 1; level <= LEVELS; level++) {
    const mix = `color-mix(in srgb, var(--${name}) ${Math.round((100 * level) / LEVELS)}%, transparent)`;
    sheet.insertRule(`.${letter}${level} { background: ${mix}; --sign: var(--ink); }`, sheet.cssRules.length);
  }
}

let pieces = []; // {node, first, last, spans}
let near = null;

function cutPieces({ bytes, starts }) {
  const cuts = [0];
  for (let last = 1; last < starts.length; last++) {
    const size = last - cuts[cuts.length - 1];
    const before = bytes[starts[last - 1]];
    const over = (size >= PIECE && before === 10) || (size >= LONGEST - 200 && before === 32) || size >= LONGEST;
    if (over || last === starts.length - 1) cuts.push(last);
  }
  return cuts.slice(1).map((last, n) => [cuts[n], last]);
}

function plain(one, first, last) {
  let whole = "";
  for (let c = first; c < last; c++) whole += shownCharacter(one.bytes, one.starts[c], one.starts[c + 1]);
  return whole;
}

function layText() {
  const one = text();
  const host = $("text");
  if (near) near.disconnect();
  host.textContent = "";
  host.classList.toggle("long", one.size > LONG_TEXT);
  host.setAttribute("aria-label", `${one.name}, ${count(one.size)} bytes`);
  near = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.isIntersecting ? dress(entry.target.piece) : undress(entry.target.piece);
  }, { rootMargin: "600px 0px" });
  pieces = cutPieces(one).map(([first, last]) => {
    const node = element("div", plain(one, first, last));
    const piece = (node.piece = { node, first, last, spans: null });
    if (one.size > LONG_TEXT) node.style.containIntrinsicSize = `auto ${Math.max(1, Math.ceil((last - first) / 75)) * 31}px`;
    host.append(node);
    near.observe(node);
    return piece;
  });
  dress(pieces[0]); // the others when they come near the view
}

function dress(piece) {
  if (piece.spans) return;
  const one = text();
  piece.spans = [];
  for (let c = piece.first; c < piece.last; c++) {
    const [start, end] = [one.starts[c], one.starts[c + 1]];
    const shown = shownCharacter(one.bytes, start, end);
    const span = element("span", shown, "", { at: c });
    if (isLayout(one.bytes[start])) span.kind = shown === "\t" ? "sign tab " : "sign ";
    else span.kind = character(one.bytes, start, end) === null ? "escape " : "";
    piece.spans.push(span);
  }
  piece.node.replaceChildren(...piece.spans);
  paint(piece);
}

function undress(piece) {
  if (!piece.spans) return;
  piece.spans = null;
  piece.node.textContent = plain(text(), piece.first, piece.last);
}

function paint(piece) {
  const [one, seen, mode] = [text(), look(), shownMode()];
  const { of, kind } = MODES[mode];
  const [low, high] = kind === "tokens" ? [0, 1] : scaleOf(mode);
  const numbers = of ? seen.numbers[of] : null;
  const { boundaries, forced, tokens } = seen;
  const at = position();
  const token = at === null ? -1 : tokens[at];
  const here = at === null ? -1 : characterAt(one.starts, at);
  for (const span of piece.spans) {
    const [start, end] = [one.starts[span.at], one.starts[span.at + 1]];
    let names = span.kind;
    names += numbers ? colour(numbers[end - 1], kind, low, high) : tokens[end - 1] % 2 ? "odd" : "even";
    let drawn = 0; // 1 forced, 2 a decision; of any of the bytes
    for (let i = start; i < end; i++) if (boundaries[i]) drawn = Math.max(drawn, forced[i] ? 1 : 2);
    if (drawn) names += drawn === 2 ? " bounded" : " forced";
    if (tokens[start] <= token && token <= tokens[end - 1]) names += " inside";
    if (span.at === here) names += " here";
    if (span.className !== names) span.className = names;
  }
}

const paintAll = () => pieces.forEach((piece) => piece.spans && paint(piece));

// The number of the piece that contains a character.
const pieceAt = (at) => lastBegun(pieces.length, (n) => pieces[n].first, at);

function spanOf(at) {
  const piece = pieces[pieceAt(at)];
  dress(piece);
  return piece.spans[at - piece.first];
}
const position = () => state.hover ?? state.cursor;
