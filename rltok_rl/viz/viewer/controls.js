// Controls: texts, segmenters, snapshots, colours.

function fillSegmenters() {
  const rows = text().segmenters.map((who, n) => {
    const row = element("tr");
    const choice = element("input");
    Object.assign(choice, { type: "radio", name: "segmenter", value: String(n), id: `segmenter-${n}` });
    const label = element("label");
    label.append(choice, element("span", who.name));
    if (text().segmenters.length > 1 && n < 9) label.lastChild.append(" ", element("kbd", String(n + 1)));
    const head = element("th");
    head.scope = "row";
    head.append(label);
    row.append(head);
    for (let k = 0; k < 5; k++) row.append(element("td", "–", k === 1 || k === 2 ? "wide" : ""));
    return row;
  });
  $("rows").replaceChildren(...rows);
}

function fillFigures() {
  [...$("rows").children].forEach((row, n) => {
    const who = text().segmenters[n];
    const chosen = n === state.segmenter;
    const { bits_per_byte: bits, early_bits_per_byte: early, rate, bytes_per_token: length } = who.looks[chosen ? state.look : lookLike(who)].figures;
    const gained = early === undefined || bits === undefined ? undefined : early - bits;
    const shown = [number(bits), number(early), gained === undefined ? "–" : signed(gained), number(rate), number(length, 2)];
    shown.forEach((words, k) => (row.children[k + 1].textContent = words));
    row.classList.toggle("chosen", chosen);
    row.querySelector("input").checked = chosen;
  });
  $("about").textContent = [segmenter().about, text().about].filter(Boolean).join(" ");
}

// The snapshot of another segmenter with the label that is shown, else the one at the same share of training.
function lookLike(who) {
  const { looks } = segmenter();
  const found = who.looks.findIndex((seen) => seen.label === looks[state.look].label);
  const share = looks.length > 1 ? state.look / (looks.length - 1) : 1;
  return found < 0 ? Math.round(share * (who.looks.length - 1)) : found;
}

function fillSteps() {
  const { looks } = segmenter();
  $("steps").hidden = looks.length < 2;
  $("slider").max = String(looks.length - 1);
  $("slider").value = String(state.look);
  $("slider").setAttribute("aria-valuetext", look().label);
  $("step").textContent = look().label;
}

const modeInputs = {};
for (const [mode, { key, name }] of Object.entries(MODES)) {
  const label = element("label", name);
  const choice = element("input");
  Object.assign(choice, { type: "radio", name: "mode", value: mode });
  label.title = `${name} (${key})`;
  label.append(choice);
  modeInputs[mode] = choice;
  choice.addEventListener("change", () => chooseMode(mode));
  $("modes").append(label);
}

function fillModes() {
  const shown = shownMode();
  const scores = text().segmenters.some((who) => who.looks.some((seen) => seen.names.has("score")));
  for (const [mode, choice] of Object.entries(modeInputs)) {
    choice.disabled = !hasMode(mode);
    choice.checked = mode === shown;
    choice.parentElement.hidden = mode === "score" && !scores;
    choice.parentElement.title = hasMode(mode) ? `${MODES[mode].name} (${MODES[mode].key})` : `${MODES[mode].name}: not known here`;
  }
  fillLegend(shown);
}

function fillLegend(mode) {
  const { kind, unit } = MODES[mode];
  const legend = $("legend");
  const ramp = element("span", undefined, kind === "tokens" ? "ramp two" : "ramp");
  const swatch = (name) => ramp.append(element("i", undefined, name));
  if (kind === "tokens") {
    swatch("odd");
    swatch("even");
    legend.replaceChildren(ramp, element("span", "a token each"));
  } else {
    const [low, high] = scaleOf(mode);
    for (let level = kind === "signed" ? -LEVELS : 0; level <= LEVELS; level += 2) swatch(level ? (kind !== "signed" ? "s" : level > 0 ? "u" : "d") + Math.abs(level) : "");
    const ends = kind === "share" ? ["0", "1"] : kind === "signed" ? [signed(low, 1), signed(high, 1)] : [number(low, 2), number(high, 2)];
    legend.replaceChildren(element("span", ends[0]), ramp, element("span", unit ? `${ends[1]} ${unit}` : ends[1]));
  }
  legend.append(element("i", undefined, "tick"), element("span", "boundary"));
  if (look().forced.includes(1)) legend.append(element("i", undefined, "tick forced"), element("span", "forced"));
}

function refresh() {
  fillFigures();
  fillSteps();
  fillModes();
  paintAll();
  showCard();
}

function chooseText(n) {
  state.text = n;
  unpackText(text());
  Object.assign(state, { segmenter: 0, look: 0, cursor: null, hover: null });
  state.look = segmenter().looks.length - 1;
  $("texts").value = String(n);
  const size = `${text().size.toLocaleString("en")} bytes`;
  $("subject").textContent = `${text().name}, ${size}`;
  fillSegmenters();
  layText();
  refresh();
}

function chooseSegmenter(n) {
  if (n < 0 || n >= text().segmenters.length || n === state.segmenter) return;
  stop();
  const at = lookLike(text().segmenters[n]);
  Object.assign(state, { segmenter: n, look: at });
  refresh();
}

function chooseLook(n) {
  state.look = Math.max(0, Math.min(n, segmenter().looks.length - 1));
  refresh();
}

function chooseMode(mode) {
  if (!hasMode(mode)) return;
  state.mode = mode;
  fillModes();
  paintAll();
}

// Play the snapshots as a film.
let film = null;
function stop() {
  clearInterval(film);
  film = null;
  $("play").textContent = "▶";
  $("play").setAttribute("aria-pressed", "false");
}
function play() {
  if (film) return stop();
  if (state.look === segmenter().looks.length - 1) chooseLook(0);
  $("play").textContent = "❚❚";
  $("play").setAttribute("aria-pressed", "true");
  film = setInterval(() => {
    chooseLook(state.look + 1);
    if (state.look === segmenter().looks.length - 1) stop();
  }, 800);
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}
