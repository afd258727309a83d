// The text in pieces: plain far from the view, a coloured span per character near it.

const LEVELS = 24;
const PIECE = 1500; // characters; a piece ends at the next new line
const LONGEST = 4000; // or here, after a space if there is one near
const LONG_TEXT = 300000; // bytes from which on pieces out of sight are not laid out

const $ = (id) => document.getElementById(id);
const content = JSON.parse($("content").textContent);
const texts = content.texts.map((held) => ({ held, name: held.name, about: held.about, size: held.size, segmenters: null }));
const state = { text: 0, segmenter: 0, look: 0, mode: "probability", cursor: null, hover: null };
const text = () => texts[state.text];
const segmenter = () => text().segmenters[state.segmenter];
const look = () => opened(segmenter().looks[state.look]);

// A text is unpacked when it is first shown, and so are the metrics of each segmenter.
function unpackText(one) {
  if (one.segmenters) return;
  one.bytes = unpackBytes(one.held.data);
  one.starts = characterStarts(one.bytes);
  one.segmenters = one.held.segmenters.map(({ name, about, looks }) => ({ name, about, looks: looks.map((held) => closed(held, one.size)) }));
  one.scales = {};
  one.held = null;
}

function closed(held, size) {
  const { label, figures, decided, numbers } = held;
  const names = new Set(Object.keys(numbers));
  if (names.has("early_bits") && names.has("final_bits")) names.add("gained");
  return { label, figures, decided, names, held, size };
}

function opened(seen) {
  if (!seen.held) return seen;
  const { held, size } = seen;
  seen.numbers = {};
  seen.boundaries = unpackBits(held.boundaries, size);
  seen.forced = unpackBits(held.forced, size);
  for (const name of Object.keys(held.numbers)) seen.numbers[name] = unpackNumbers(held.numbers[name]);
  const { early_bits: early, final_bits: final } = seen.numbers;
  if (seen.names.has("gained")) seen.numbers.gained = early.map((bits, i) => bits - final[i]);
  seen.tokens = new Uint32Array(size); // tokens that ended before each byte
  for (let i = 1; i < size; i++) seen.tokens[i] = seen.tokens[i - 1] + seen.boundaries[i - 1];
  seen.held = null;
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
  const one = text();
  if (kind === "share") return [0, 1];
  if (!(mode in one.scales)) {
    const values = [];
    for (const who of one.segmenters) for (const seen of who.looks) {
      if (!seen.names.has(of)) continue;
      const numbers = opened(seen).numbers[of];
      const stride = Math.max(1, Math.floor(numbers.length / 20000));
      for (let i = 0; i < numbers.length; i += stride) if (!Number.isNaN(numbers[i])) values.push(kind === "signed" ? Math.abs(numbers[i]) : numbers[i]);
    }
    values.sort((a, b) => a - b);
    const high = values[Math.floor(0.99 * (values.length - 1))] || 1;
    one.scales[mode] = kind === "range" ? [values[0] ?? 0, high] : [kind === "signed" ? -high : 0, high];
  }
  return one.scales[mode];
}

// The class of a value's colour: s for amounts, u and d for positive and negative values.
function colour(value, kind, low, high) {
  if (Number.isNaN(value)) return "";
  const share = kind === "signed" ? value / high : (value - low) / (high - low || 1);
  const level = Math.min(LEVELS, Math.round(LEVELS * Math.abs(share)));
  if (level === 0) return "";
  return (kind !== "signed" ? "s" : share > 0 ? "u" : "d") + level;
}

const sheet = document.styleSheets[0];
for (const [letter, name] of [["s", "seq"], ["u", "pos"], ["d", "neg"]]) {
  for (let level = 1; level <= LEVELS; level++) {
    sheet.insertRule(`.${letter}${level} { background: color-mix(in srgb, var(--${name}) ${Math.round((100 * level) / LEVELS)}%, transparent); --sign: var(--ink); }`, sheet.cssRules.length);
  }
}
sheet.insertRule(".odd { background: var(--odd); --sign: var(--ink); }", sheet.cssRules.length);
sheet.insertRule(".even { background: var(--even); --sign: var(--ink); }", sheet.cssRules.length);

let pieces = []; // {node, first, last, spans}
let near = null;

function cutPieces(one) {
  const found = [];
  const { bytes, starts } = one;
  const count = starts.length - 1;
  let first = 0;
  for (let last = 1; last <= count; last++) {
    const size = last - first;
    const before = bytes[starts[last - 1]];
    const over = (size >= PIECE && before === 10) || (size >= LONGEST - 200 && before === 32) || size >= LONGEST;
    if (over || last === count) {
      found.push([first, last]);
      first = last;
    }
  }
  return found;
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
  host.setAttribute("aria-label", `${one.name}, ${one.size.toLocaleString("en")} bytes`);
  near = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.isIntersecting ? dress(entry.target.piece) : undress(entry.target.piece);
  }, { rootMargin: "600px 0px" });
  pieces = cutPieces(one).map(([first, last]) => {
    const node = document.createElement("div");
    const piece = { node, first, last, spans: null };
    node.piece = piece;
    node.textContent = plain(one, first, last);
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
  const made = document.createDocumentFragment();
  piece.spans = [];
  for (let c = piece.first; c < piece.last; c++) {
    const span = document.createElement("span");
    const start = one.starts[c];
    const end = one.starts[c + 1];
    const shown = shownCharacter(one.bytes, start, end);
    span.textContent = shown;
    span.at = c;
    span.kind = isLayout(one.bytes[start]) ? (shown === "\t" ? "sign tab " : "sign ") : character(one.bytes, start, end) === null ? "escape " : "";
    piece.spans.push(span);
    made.append(span);
  }
  piece.node.replaceChildren(made);
  paint(piece);
}

function undress(piece) {
  if (!piece.spans) return;
  piece.spans = null;
  piece.node.textContent = plain(text(), piece.first, piece.last);
}

function paint(piece) {
  const one = text();
  const seen = look();
  const mode = shownMode();
  const { of, kind } = MODES[mode];
  const [low, high] = kind === "tokens" ? [0, 1] : scaleOf(mode);
  const numbers = of ? seen.numbers[of] : null;
  const { boundaries, forced, tokens } = seen;
  const at = position();
  const token = at === null ? -1 : tokens[at];
  const here = at === null ? -1 : characterAt(one.starts, at);
  for (const span of piece.spans) {
    const start = one.starts[span.at];
    const end = one.starts[span.at + 1];
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

// The piece of a character; pieces are in order.
function pieceOf(at) {
  let low = 0;
  let high = pieces.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pieces[middle].first <= at) low = middle;
    else high = middle - 1;
  }
  return pieces[low];
}

function spanOf(at) {
  const piece = pieceOf(at);
  dress(piece);
  return piece.spans[at - piece.first];
}
const position = () => state.hover ?? state.cursor;
