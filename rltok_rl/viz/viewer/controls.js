// Controls: texts, segmenters, snapshots, colours.

function fillSegmenters() {
  const { segmenters } = text();
  const rows = segmenters.map((who, n) => {
    const label = element("label");
    const choice = element("input", undefined, "", { type: "radio", name: "segmenter", value: String(n), id: `segmenter-${n}` });
    label.append(choice, element("span", who.name));
    if (segmenters.length > 1 && n < 9) label.lastChild.append(" ", element("kbd", String(n + 1)));
    const head = element("th", undefined, "", { scope: "row" });
    head.append(label);
    const row = element("tr");
    row.append(head, ...["", "wide", "wide", "", ""].map((name) => element("td", "–", name)));
    return row;
  });
  $("rows").replaceChildren(...rows);
}

function fillMetrics() {
  [...$("rows").children].forEach((row, n) => {
    const who = text().segmenters[n];
    const chosen = n === state.segmenter;
    const { figures } = who.looks[chosen ? state.look : lookLike(who)];
    const { bits_per_byte: bits, early_bits_per_byte: early, rate, bytes_per_token: length } = figures;
    const shown = [number(bits), number(early), signed(early - bits), number(rate), number(length, 2)];
    shown.forEach((words, k) => (row.children[k + 1].textContent = words));
    row.classList.toggle("chosen", chosen);
    row.querySelector("input").checked = chosen;
  });
  $("about").textContent = [segmenter().about, text().about].filter(Boolean).join(" ");
}

// The snapshot of another segmenter with the label that is shown, else the one at the same share of training.
function lookLike(who) {
  const { looks } = segmenter();
  const same = who.looks.findIndex((seen) => seen.label === looks[state.look].label);
  const share = looks.length > 1 ? state.look / (looks.length - 1) : 1;
  return same < 0 ? Math.round(share * (who.looks.length - 1)) : same;
}

const lastLook = () => segmenter().looks.length - 1;

function fillSteps() {
  $("steps").hidden = lastLook() === 0;
  Object.assign($("slider"), { max: String(lastLook()), value: String(state.look) });
  $("slider").setAttribute("aria-valuetext", look().label);
  $("step").textContent = look().label;
}

const modeInputs = {};
for (const [mode, { name }] of Object.entries(MODES)) {
  const label = element("label", name);
  modeInputs[mode] = element("input", undefined, "", { type: "radio", name: "mode", value: mode });
  modeInputs[mode].addEventListener("change", () => chooseMode(mode));
  label.append(modeInputs[mode]);
  $("modes").append(label);
}

function fillModes() {
  const shown = shownMode();
  const scores = text().segmenters.some((who) => who.looks.some((seen) => seen.names.has("score")));
  for (const [mode, choice] of Object.entries(modeInputs)) {
    choice.disabled = !hasMode(mode);
    choice.checked = mode === shown;
    choice.parentElement.hidden = mode === "score" && !scores;
    choice.parentElement.title = MODES[mode].name + (hasMode(mode) ? ` (${MODES[mode].key})` : ": not known here");
  }
  fillLegend(shown);
}

function fillLegend(mode) {
  const { kind, unit } = MODES[mode];
  const legend = $("legend");
  const ramp = element("span", undefined, kind === "tokens" ? "ramp two" : "ramp");
  const swatches = (...names) => ramp.append(...names.map((name) => element("i", undefined, name)));
  if (kind === "tokens") {
    swatches("odd", "even");
    legend.replaceChildren(ramp, element("span", "a token each"));
  } else {
    const [low, high] = scaleOf(mode);
    for (let level = kind === "signed" ? -LEVELS : 0; level <= LEVELS; level += 2) swatches(colourClass(level, kind));
    const ends = kind === "share" ? ["0", "1"] : kind === "signed" ? [signed(low, 1), signed(high, 1)] : [number(low, 2), number(high, 2)];
    legend.replaceChildren(element("span", ends[0]), ramp, element("span", unit ? `${ends[1]} ${unit}` : ends[1]));
  }
  legend.append(element("i", undefined, "tick"), element("span", "boundary"));
  if (look().forced.includes(1)) legend.append(element("i", undefined, "tick forced"), element("span", "forced"));
}

function refresh() {
  fillMetrics();
  fillSteps();
  fillModes();
  paintAll();
  showCard();
}

function chooseText(n) {
  Object.assign(state, { text: n, segmenter: 0, cursor: null, hover: null });
  unpackText(text());
  state.look = lastLook();
  $("texts").value = String(n);
  $("subject").textContent = `${text().name}, ${count(text().size)} bytes`;
  fillSegmenters();
  layText();
  refresh();
}

function chooseSegmenter(n) {
  if (n < 0 || n >= text().segmenters.length || n === state.segmenter) return;
  stop();
  Object.assign(state, { look: lookLike(text().segmenters[n]), segmenter: n });
  refresh();
}

function chooseLook(n) {
  state.look = Math.max(0, Math.min(n, lastLook()));
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
function showPlaying(playing) {
  $("play").textContent = playing ? "❚❚" : "▶";
  $("play").setAttribute("aria-pressed", String(playing));
}
function stop() {
  clearInterval(film);
  film = null;
  showPlaying(false);
}
function play() {
  if (film) return stop();
  if (state.look === lastLook()) chooseLook(0);
  showPlaying(true);
  film = setInterval(() => {
    chooseLook(state.look + 1);
    if (state.look === lastLook()) stop();
  }, 800);
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}
