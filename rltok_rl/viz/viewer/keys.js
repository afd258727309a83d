// Mouse, touch and keys; then the page starts.

const host = $("text");
const lastByte = (span) => (span.at === undefined ? null : text().starts[span.at + 1] - 1);

// The card follows the pointer; a click keeps it.
host.addEventListener("pointerover", (event) => {
  if (event.pointerType !== "touch") setHover(lastByte(event.target));
});
host.addEventListener("pointerleave", () => setHover(null));
host.addEventListener("click", (event) => {
  if (event.target.at !== undefined && getSelection().isCollapsed) setCursor(lastByte(event.target), false);
});
addEventListener("scroll", () => !$("card").hidden && showCard(), { passive: true });
addEventListener("resize", () => showCard());
host.addEventListener("focus", () => state.cursor === null && host.matches(":focus-visible") && setCursor(0));

// Repaint only the pieces that contain the old and the new token.
function moveTo(change) {
  const before = position();
  change();
  const after = position();
  for (const piece of new Set([before, after].flatMap(touched))) if (piece.spans) paint(piece);
  showCard();
}

function touched(at) {
  if (at === null) return [];
  const { starts, size } = text();
  const [start, end] = tokenAround(look(), at, size);
  return pieces.slice(pieceAt(characterAt(starts, start)), pieceAt(characterAt(starts, end - 1)) + 1);
}

function setHover(at) {
  if (state.hover !== at) moveTo(() => (state.hover = at));
}

function setCursor(at, follow = true) {
  moveTo(() => Object.assign(state, { cursor: at, hover: null }));
  if (at === null) return;
  bringIntoView(spanOf(characterAt(text().starts, at)), follow);
  showCard();
  say(at);
}

// Scroll between the bar at the top and, on a narrow screen, the card at the bottom.
function bringIntoView(span, follow) {
  const card = $("card").getBoundingClientRect();
  const sheet = card.width > innerWidth - 24;
  if (!follow && !sheet) return;
  const top = $("bar").getBoundingClientRect().bottom + 8;
  const bottom = (sheet ? card.top : innerHeight) - 40;
  const box = span.getBoundingClientRect();
  if (box.top >= top && box.bottom <= bottom) return;
  scrollBy(0, (box.top + box.bottom) / 2 - (Math.max(top, 60) + bottom) / 2);
}

function moveByte(step) {
  const last = text().size - 1;
  setCursor(state.cursor === null ? (step > 0 ? 0 : last) : Math.max(0, Math.min(last, state.cursor + step)));
}

function moveBoundary(step) {
  const { boundaries } = look();
  let at = state.cursor ?? (step > 0 ? -1 : text().size);
  do at += step;
  while (at >= 0 && at < text().size && !boundaries[at]);
  if (at >= 0 && at < text().size) setCursor(at);
}

const ARROWS = {
  ArrowLeft: (event) => (event.shiftKey ? moveBoundary(-1) : moveByte(-1)),
  ArrowRight: (event) => (event.shiftKey ? moveBoundary(1) : moveByte(1)),
  ArrowUp: () => moveBoundary(-1),
  ArrowDown: () => moveBoundary(1),
  Home: () => setCursor(0),
  End: () => setCursor(text().size - 1),
};
const KEYS = {
  "[": () => chooseSegmenter(state.segmenter - 1),
  "]": () => chooseSegmenter(state.segmenter + 1),
  ",": () => (stop(), chooseLook(state.look - 1)),
  ".": () => (stop(), chooseLook(state.look + 1)),
  n: () => chooseText((state.text + 1) % texts.length),
  d: switchTheme,
  "?": () => $("help").showModal(),
  Escape: () => setCursor(null),
};
for (const [mode, { key }] of Object.entries(MODES)) KEYS[key] = () => chooseMode(mode);

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const focus = document.activeElement ?? document.body;
  const sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
  if (event.key in ARROWS && (focus === host || (focus === document.body && sideways))) {
    event.preventDefault();
    ARROWS[event.key](event);
  } else if (focus.matches("select")) {
    return; // letters choose among its entries
  } else if (event.key in KEYS) {
    event.preventDefault();
    KEYS[event.key]();
  } else if (/^[1-9]$/.test(event.key)) {
    chooseSegmenter(Number(event.key) - 1);
  }
});

$("rows").addEventListener("change", (event) => chooseSegmenter(Number(event.target.value)));
$("slider").addEventListener("input", () => (stop(), chooseLook(Number($("slider").value))));
$("texts").addEventListener("change", () => chooseText(Number($("texts").value)));
$("play").addEventListener("click", play);
$("theme").addEventListener("click", switchTheme);
$("help-button").addEventListener("click", () => $("help").showModal());
$("help").addEventListener("click", (event) => event.target === $("help") && $("help").close());
addEventListener("beforeprint", () => pieces.forEach(dress));

$("title").textContent = content.title;
$("texts").append(...texts.map((one, n) => element("option", one.name, "", { value: String(n) })));
$("text-choice").hidden = texts.length < 2;
chooseText(0);
document.documentElement.dataset.ready = "yes";
