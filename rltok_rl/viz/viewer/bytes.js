// Packed numbers, and characters made of bytes.

const MISSING = 65535;

function unpackBytes(held) {
  const raw = atob(held);
  return new Uint8Array(raw.length).map((_, i) => raw.charCodeAt(i));
}

function unpackBits(held, size) {
  const bytes = unpackBytes(held ?? "");
  return new Uint8Array(size).map((_, i) => (bytes[i >> 3] >> (i & 7)) & 1);
}

function unpackNumbers(held) {
  const bytes = unpackBytes(held.data);
  const step = (held.high - held.low) / (MISSING - 1);
  return new Float32Array(bytes.length / 2).map((_, i) => {
    const code = bytes[2 * i] | (bytes[2 * i + 1] << 8);
    return code === MISSING ? NaN : held.low + step * code;
  });
}

// Length in bytes of the character at i, or 0 for invalid UTF-8.
function characterLength(bytes, i) {
  const first = bytes[i];
  if (first < 0x80) return 1;
  const length = first >= 0xc2 && first <= 0xdf ? 2 : (first & 0xf0) === 0xe0 ? 3 : first >= 0xf0 && first <= 0xf4 ? 4 : 0;
  if (length === 0 || i + length > bytes.length) return 0;
  // The second byte's range excludes overlong forms, surrogates, and code points above U+10FFFF.
  const low = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
  const high = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
  if (bytes[i + 1] < low || bytes[i + 1] > high) return 0;
  for (let k = 2; k < length; k++) if ((bytes[i + k] & 0xc0) !== 0x80) return 0;
  return length;
}

// The first byte of each character, and the end of the last; invalid bytes are characters of their own.
function characterStarts(bytes) {
  const starts = new Uint32Array(bytes.length + 1);
  let count = 0;
  for (let i = 0; i < bytes.length; i += characterLength(bytes, i) || 1) starts[count++] = i;
  starts[count] = bytes.length;
  return starts.slice(0, count + 1);
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const UNSEEN = /^[\p{C}\p{Z}]$/u; // controls, directional marks, unassigned, all spaces but the plain one
const hex = (byte) => byte.toString(16).padStart(2, "0");

// The character, or null if it is invisible or invalid.
function character(bytes, start, end) {
  if (end - start === 1) return bytes[start] >= 0x20 && bytes[start] < 0x7f ? String.fromCharCode(bytes[start]) : null;
  const one = decoder.decode(bytes.subarray(start, end));
  return UNSEEN.test(one) ? null : one;
}

const escaped = (bytes, start, end) => Array.from(bytes.subarray(start, end), (byte) => "\\x" + hex(byte)).join("");
const isLayout = (byte) => byte === 10 || byte === 9; // new lines and tabs are laid out

// The text shown for a character.
function shownCharacter(bytes, start, end) {
  if (end - start === 1 && isLayout(bytes[start])) return String.fromCharCode(bytes[start]);
  return character(bytes, start, end) ?? escaped(bytes, start, end);
}

// The last of `count` places, in order, that begins at or before `at`.
function lastBegun(count, begin, at) {
  let [low, high] = [0, count - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (begin(middle) <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Number of the character that contains a byte.
const characterAt = (starts, byte) => lastBegun(starts.length - 1, (c) => starts[c], byte);
