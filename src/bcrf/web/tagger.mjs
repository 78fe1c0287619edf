// Tags sentences in a browser or in node, with a file that `bcrf export` has written:
//
//   import * as ort from "onnxruntime-web";
//   const tagger = await Tagger.load(ort, new Uint8Array(await file.arrayBuffer()));
//   await tagger.tag("Ada visited Turin again .");  // [["Ada", "B-PER"], ...]

const SPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/u; // as in Python

// Digits of Python (str.isdigit) that are not decimal: superscripts, circled digits, ...
const OTHER_DIGIT =
  /[\u00b2\u00b3\u00b9\u1369-\u1371\u19da\u2070\u2074-\u2079\u2080-\u2089\u2460-\u2468\u2474-\u247c\u2488-\u2490\u24ea\u24f5-\u24fd\u24ff\u2776-\u277e\u2780-\u2788\u278a-\u2792\u{10a40}-\u{10a43}\u{10e60}-\u{10e68}\u{11052}-\u{1105a}\u{1f100}-\u{1f10a}]/u;

// How many n-grams or classes of a character have the same name.
const COUNTS = { bigram: 2, trigram: 3, class: 3 };

/** Return the description in an ONNX file (Uint8Array): labels, vocabularies, decoder, task. */
export function readDescription(file) {
  const text = new TextDecoder();
  for (const [field, entry] of fields(file)) {
    if (field !== 14) continue; // metadata_props of a ModelProto: pairs of key (1) and value (2)
    const pair = Object.fromEntries(fields(entry));
    if (pair[1] && text.decode(pair[1]) === "bcrf") return JSON.parse(text.decode(pair[2]));
  }
  throw new Error("the file has no description; expected a file that `bcrf export` has written");
}

/** Yield the number and the content of each field of a protobuf message that holds bytes. */
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      if (at >= bytes.length || scale > 2 ** 49) throw new Error("the file is not an ONNX file");
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    const wire = tag % 8;
    if (wire === 0) varint();
    else if (wire === 2) {
      const size = varint();
      if (at + size > bytes.length) throw new Error("the file is incomplete");
      yield [Math.floor(tag / 8), bytes.subarray(at, (at += size))];
    } else if (wire === 1 || wire === 5) at += wire === 1 ? 8 : 4;
    else throw new Error("the file is not an ONNX file");
  }
}

/** Computes the ids of the features of words or characters. */
export class Features {
  constructor(about) {
    this.about = about;
    this.isText = about.features.kind === "character";
    this.tables = [];
    let first = 0; // the id of unknown values; those of known values follow
    for (const [name, values] of Object.entries(about.features.values)) {
      const table = { unknown: first, ids: new Map(values.map((x, i) => [x, first + 1 + i])) };
      for (let i = 0; i < (COUNTS[name] ?? 1); i++) this.tables.push(table);
      first += 1 + values.length;
    }
    this.vectors = about.vectors && new Map(about.vectors.map((x, i) => [x, i + 1]));
    this.width = this.tables.length + (this.vectors ? 1 : 0);
  }

  /** Return the ids of all tokens, one token after the other. */
  ids(tokens) {
    const found = this.isText ? this.ofCharacters(tokens) : tokens.map((x) => this.ofWord(x));
    const ids = new Int32Array(tokens.length * this.width);
    found.forEach((values, i) => {
      values.forEach((value, j) => {
        const { ids: known, unknown } = this.tables[j];
        ids[i * this.width + j] = known.get(value) ?? unknown;
      });
      if (this.vectors) {
        const id = this.vectors.get(tokens[i]) ?? this.vectors.get(tokens[i].toLowerCase());
        ids[(i + 1) * this.width - 1] = id ?? 0;
      }
    });
    return ids;
  }

  ofWord(token) {
    const word = this.about.features.lowercase ? token.toLowerCase() : token;
    const letters = [...word];
    const lower = (start, end) => letters.slice(start, end).join("").toLowerCase();
    const affixes = [1, 2, 3, 4].map((k) => lower(0, k));
    affixes.push(...[1, 2, 3, 4, 5].map((k) => lower(-k)));
    const kinds = letters.map(letterKind);
    const shape = kinds.filter((kind, i) => kind !== kinds[i - 1] || kind !== kinds[i - 2]);
    return [word, word.toLowerCase(), ...affixes, shape.join("")];
  }

  ofCharacters(tokens) {
    const text = ["\n", "\n", ...tokens, "\n", "\n"];
    const classes = text.map((x) => this.characterClass(x.codePointAt(0)));
    const gram = (start, size) => text.slice(start, start + size).join("");
    return tokens.map((x, k) => {
      const i = k + 2;
      const grams = [gram(i - 1, 2), gram(i, 2), gram(i - 2, 3), gram(i - 1, 3), gram(i, 3)];
      return [x, ...grams, ...classes.slice(i - 1, i + 2)];
    });
  }

  characterClass(code) {
    const ranges = this.about.character_classes;
    let [low, high] = [0, ranges.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ranges[middle][0] <= code) low = middle + 1;
      else high = middle;
    }
    return low > 0 && code <= ranges[low - 1][1] ? ranges[low - 1][2] : null;
  }
}

/** Return X, x, d or c for letters and digits, and the character itself for all others. */
export function letterKind(letter) {
  if (/\p{Uppercase}/u.test(letter)) return "X";
  if (/\p{Lowercase}/u.test(letter)) return "x";
  if (/\p{Nd}/u.test(letter) || OTHER_DIGIT.test(letter)) return "d";
  return /\p{L}/u.test(letter) ? "c" : letter;
}

export class Tagger {
  constructor(ort, session, about) {
    Object.assign(this, { ort, session, about, features: new Features(about) });
  }

  /** Load a file (Uint8Array) with the runtime `ort`, the module onnxruntime-web. */
  static async load(ort, file) {
    const about = readDescription(file);
    if (about.format !== 1) throw new Error(`format ${about.format} of the file; expected 1`);
    const session = await ort.InferenceSession.create(file, { executionProviders: ["wasm"] });
    return new Tagger(ort, session, about);
  }

  /** Return [token, tag] for each word, or for each character, of a sentence. */
  async tag(sentence) {
    const { Tensor } = this.ort;
    const isText = this.features.isText;
    const pieces = isText ? [...sentence] : sentence.split(SPACE);
    const tokens = pieces.filter((x) => x && !SPACE.test(x));
    const n = tokens.length;
    if (n === 0) return [];
    const feed = {
      features: new Tensor("int32", this.features.ids(tokens), [1, n, this.features.width]),
      lengths: new Tensor("int32", Int32Array.of(n), [1]),
    };
    if (isText) {
      const isFirst = pieces.map((x, i) => i > 0 && SPACE.test(pieces[i - 1]));
      const breaks = isFirst.filter((_, i) => !SPACE.test(pieces[i]));
      feed.breaks = new Tensor("bool", Uint8Array.from(breaks), [1, n]);
    }
    const { tags } = await this.session.run(feed);
    return tokens.map((token, i) => [token, this.about.labels[Number(tags.data[i])]]);
  }
}
