"""Train the network of the detector `names` from public corpora, word vectors and lists of names.

    python tools/names_model.py CORPORA OUT.npz --vectors glove.npz --lists FOLDER --stop 4

CORPORA is read by `names_corpora.py`. `--vectors` has arrays `words` and `vectors` (GloVe 6B 100d,
PDDL 1.0, most frequent words first). `--lists` holds `dist.all.last`, `dist.female.first` and
`dist.male.first` (US census 1990, public domain), `cities15000.json` and `countries.json`
(GeoNames, CC BY 4.0). Faker (MIT) gives names of other countries. One thread; seeds are fixed.
"""

import argparse
import copy
import json
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from names_corpora import KINDS, Sentence, read_all
from names_templates import Names, lines, organisation, person
from torch import nn

from tacit.detection.lists import read_embedded
from tacit.detection.names.tokens import PREFIXES, SHAPES, SUFFIXES, WORDS, plain, rows

TAGS = ("O", *(f"{place}-{kind}" for kind in KINDS for place in "BI"))
VOCABULARY, DIMENSIONS, HIDDEN, LAYERS = 60_000, 48, 128, (1, 2, 4)
STEP = 1 / 16  # of activations: integers from -127 to 127 stand for -7.9 to 7.9
_COUNTRIES = """en_US en_GB en_IN de_DE fr_FR es_ES it_IT nl_NL pl_PL pt_BR sv_SE da_DK fi_FI cs_CZ
hu_HU ro_RO tr_TR hr_HR no_NO en_NZ en_IE id_ID"""
LOCALES = _COUNTRIES.split()

BITS = ("first", "last", "rare", "city", "part", "country", "people", "firm", "title", "small",
        "capital", "day", "particle")  # fmt: skip


_TITLES = """mr mrs ms dr prof sir president minister senator governor judge king queen prince pope
captain general colonel chairman coach manager spokesman"""
_DAYS = """monday tuesday wednesday thursday friday saturday sunday january february march april may
june july august september october november december"""
_PARTICLES = "van von de der den la le di da bin ibn al el mc mac st del dos"


# ---- words


class Lexicon:
    """Every word with a vector or a bit: its row, its vector, its bits."""

    def __init__(self, vectors: Path, lists: Path, sentences: list[Sentence]) -> None:
        """Read the lists and make the tables."""
        bits: dict[str, int] = {}

        def mark(bit: str, words) -> None:
            for word in words:
                bits[plain(word)] = bits.get(plain(word), 0) | 1 << BITS.index(bit)

        self.census(lists)
        mark("first", self.first_names)
        mark("last", self.last[:20_000])
        mark("rare", self.last[20_000:60_000])
        mark("last", self.foreign_last)
        cities = [c["name"] for c in json.loads((lists / "cities15000.json").read_text()).values()]
        self.cities = [c for c in cities if c.isascii() and c.replace(" ", "").isalpha()]
        mark("city", (c for c in self.cities if " " not in c))
        mark("part", (w for c in self.cities if " " in c for w in c.split()))
        self.countries = [t.text for t in read_embedded("countries") if t.text[0].isupper()]
        counties = (
            "Essex Kent Surrey Sussex Somerset Yorkshire Lancashire Hampshire Derbyshire Durham"
        )
        self.states = [*(t.text for t in read_embedded("us_states")), *counties.split()]
        mark("country", (w for n in ("countries", "us_states") for t in read_embedded(n)
                         for w in t.text.split() if w[0].isupper()))  # fmt: skip
        mark("people", (t.text for t in read_embedded("nationalities") if " " not in t.text))
        self.firms = [t.text for t in read_embedded("organisations")]
        mark("firm", (w for t in self.firms for w in t.split() if w[0].isupper()))
        mark("title", _TITLES.split())
        mark("day", _DAYS.split())
        mark("particle", _PARTICLES.split())
        small, capital = usual_case(sentences)
        mark("small", small)
        mark("capital", capital)
        given = np.load(vectors)
        words = [str(w) for w in given["words"][:VOCABULARY]]
        dense = given["vectors"][:VOCABULARY].astype(np.float64)
        values, axes = np.linalg.eigh(np.cov(dense.T))
        dense = (dense - dense.mean(0)) @ axes[:, np.argsort(-values)[:DIMENSIONS]]
        dense /= np.abs(dense).std() * 2
        self.vectors = np.clip(np.round(dense * 32), -127, 127).astype(np.int8)
        known = set(words)
        self.words = [*words, *sorted(w for w in bits if w not in known and "\n" not in w)]
        self.bits = np.array([bits.get(w, 0) for w in self.words], np.uint16)
        self.row = {w: i for i, w in enumerate(self.words)}

    def census(self, lists: Path) -> None:
        """First and last names, most frequent first, and those of other countries."""
        from faker import Faker

        def column(name: str) -> list[str]:
            return [
                line.split()[0].title() for line in (lists / name).read_text().split("\n") if line
            ]

        self.last = column("dist.all.last")
        self.first = [*column("dist.male.first"), *column("dist.female.first")]
        foreign_first, foreign_last = set(), set()
        for locale in LOCALES:
            fake = Faker(locale)
            fake.seed_instance(7)
            foreign_first |= {fake.first_name() for _ in range(1500)}
            foreign_last |= {fake.last_name() for _ in range(3000)}
        self.foreign_first = sorted(n for n in foreign_first if n.isalpha())
        self.foreign_last = sorted(n for n in foreign_last if n.isalpha())
        self.first_names = [*self.first, *self.foreign_first]

    def names(self, sentences: list[Sentence]) -> Names:
        """What made-up lines and replaced names draw from."""
        marked = [
            m for s in sentences if s.source in ("gmb", "wikigold") for m in mentions(s, "ORG")
        ]
        return Names(
            first=self.first[:600] + self.first[1219:2200] + self.foreign_first,
            last=self.last[:12_000] + self.foreign_last,
            cities=self.cities,
            countries=self.countries,
            states=self.states,
            organisations=[*self.firms, *marked[::2]],
        )


def mentions(sentence: Sentence, kind: str) -> list[str]:
    """The names of a kind in a sentence."""
    found: list[str] = []
    for token, tag in zip(sentence.tokens, sentence.tags, strict=True):
        if tag == f"B-{kind}":
            found.append(token)
        elif tag == f"I-{kind}" and found:
            found[-1] += f" {token}"
    return found


def usual_case(sentences: list[Sentence]) -> tuple[set[str], set[str]]:
    """Words that stand small inside sentences, and those that stand there with a capital."""
    low: Counter[str] = Counter()
    high: Counter[str] = Counter()
    for s in sentences:
        if s.source in ("gmb", "wikigold", "ewt"):
            for token in s.tokens[1:]:
                if token.islower():
                    low[token] += 1
                elif token.istitle():
                    high[token.lower()] += 1
    small = {w for w, n in low.items() if n > 9 * high[w]}
    return small, {w for w, n in high.items() if n > 1 and n > 9 * low[w]}


class Types:
    """The features of each distinct word, as rows of arrays."""

    def __init__(self, lexicon: Lexicon) -> None:
        """Begin with the empty word, which stands where a word is hidden or none is."""
        self.lexicon, self.index = lexicon, {}
        self.rows, self.known = [(0, 0, 0, 0)], [-1]

    def __call__(self, word: str) -> int:
        """The number of a word's row."""
        at = self.index.get(word)
        if at is None:
            at = self.index[word] = len(self.rows)
            self.rows.append(rows(word))
            self.known.append(self.lexicon.row.get(plain(word), -1))
        return at

    def tables(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows of the hash tables, vectors, and bits, for all words met so far."""
        known = np.array(self.known)
        vectors = np.zeros((len(known), DIMENSIONS), np.float32)
        some = (known >= 0) & (known < VOCABULARY)
        vectors[some] = self.lexicon.vectors[known[some]] / 32
        bits = np.zeros((len(known), len(BITS)), np.float32)
        listed = known >= 0
        bits[listed] = (self.lexicon.bits[known[listed]][:, None] >> np.arange(len(BITS))) & 1
        return torch.tensor(np.array(self.rows)), torch.tensor(vectors), torch.tensor(bits)


# ---- the network, in floats that stand for integers


def whole(x: torch.Tensor, step: torch.Tensor | float, low: int = -127) -> torch.Tensor:
    """The value that an integer times the step stands for; gradients pass as if unrounded."""
    return x + (torch.clamp(torch.round(x / step), low, 127) * step - x).detach()


def scaled(weight: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """Weights rounded to 255 values a row, or in all."""
    size = weight.abs().amax(axis, keepdim=True) if axis is not None else weight.abs().max()
    return whole(weight, size.clamp_min(1e-6).detach() / 127)


class Network(nn.Module):
    """Words to vectors, three layers that look 1, 2 and 4 words to either side, tags."""

    def __init__(self) -> None:
        """Start small and random."""
        super().__init__()
        self.tables = nn.ParameterList(
            nn.Parameter(torch.randn(n, HIDDEN) * 0.15) for n in (WORDS, PREFIXES, SUFFIXES, SHAPES)
        )
        self.bits = nn.Parameter(torch.randn(len(BITS), HIDDEN) * 0.2)
        self.vector = nn.Parameter(torch.randn(DIMENSIONS, HIDDEN) * 0.2)
        self.layers = nn.ModuleList(nn.Linear(3 * HIDDEN, HIDDEN) for _ in LAYERS)
        self.out = nn.Linear(HIDDEN, len(TAGS))
        self.drop = nn.Dropout(0.15)

    def forward(self, hashed, vectors, bits, mask):
        """Scores of the tags for tokens in rows of one length, padded."""
        x = sum(scaled(t)[hashed[..., i]] for i, t in enumerate(self.tables))
        x = x + bits @ scaled(self.bits) + vectors @ scaled(self.vector)
        x = self.drop(whole(x, STEP)) * mask
        for layer, gap in zip(self.layers, LAYERS, strict=True):
            before = nn.functional.pad(x, (0, 0, gap, 0))[:, : x.shape[1]]
            after = nn.functional.pad(x, (0, 0, 0, gap))[:, gap:]
            wide = torch.cat([before, x, after], -1)
            z = torch.relu(nn.functional.linear(wide, scaled(layer.weight, 1), layer.bias))
            x = self.drop(whole(x + whole(z, STEP, 0), STEP)) * mask
        return nn.functional.linear(x, scaled(self.out.weight, 1), self.out.bias)


# ---- training


def varied(s: Sentence, names: Names, rng: random.Random) -> tuple[list[str], list[str]]:
    """A sentence with some of its names replaced, and sometimes in other letters."""
    tokens, tags = replaced(s, names, rng) if rng.random() < 0.5 else (s.tokens, s.tags)
    draw = rng.random()
    if draw < 0.07:
        tokens = [t.upper() for t in tokens]
    elif draw < 0.12:
        tokens = [t.lower() for t in tokens]
    elif draw < 0.14:
        tokens = [t.title() if len(t) > 3 else t for t in tokens]
    return tokens, tags


def replaced(s: Sentence, names: Names, rng: random.Random) -> tuple[list[str], list[str]]:
    """The sentence with other names in place of some of its own."""
    from tacit.detection.names.tokens import TOKEN

    tokens: list[str] = []
    tags: list[str] = []
    i = 0
    while i < len(s.tokens):
        j = i + 1
        kind = s.tags[i][2:]
        while j < len(s.tokens) and s.tags[j] == f"I-{kind}":
            j += 1
        new = None
        if s.tags[i][0] == "B" and rng.random() < 0.35:
            if kind == "PERSON":
                one = rng.choice(names.last if rng.random() < 0.7 else names.first)
                new = person(names, rng) if j - i > 1 else one
            elif kind == "LOC" and j - i == 1:
                new = rng.choice(names.countries if rng.random() < 0.3 else names.cities)
            elif kind == "ORG":
                new = organisation(names, rng)
        pieces = TOKEN.findall(new) if new else s.tokens[i:j]
        tokens += pieces
        tags += (
            [s.tags[i], *(s.tags[i].replace("B-", "I-"),) * (len(pieces) - 1)]
            if new
            else s.tags[i:j]
        )
        i = j
    return tokens, tags


SHARES = {"gmb": 1.0, "wikigold": 2.0, "ewt": 2.0, "btc": 0.6, "wnut": 0.6, "wikiann": 0.4}


def epoch(sentences: list[Sentence], names: Names, made: int, rng: random.Random):
    """The sentences of an epoch, varied: some sources often, some in part, some joined."""
    chosen: list[tuple[list[str], list[str], bool]] = []
    for s in sentences:
        share = SHARES[s.source]
        for _ in range(int(share) + (rng.random() < share % 1)):
            chosen.append((*varied(s, names, rng), s.misc))
    for s in lines(names, made, rng):
        tokens, tags = s.tokens, s.tags
        if rng.random() < 0.08:
            tokens = [t.upper() for t in tokens]
        elif rng.random() < 0.05:
            tokens = [t.lower() for t in tokens]
        chosen.append((tokens, tags, True))
    rng.shuffle(chosen)
    # Records have several sentences, too: the next is then a stranger, as between paragraphs.
    joined = []
    while chosen:
        one = chosen.pop()
        if chosen and rng.random() < 0.25 and chosen[-1][2] == one[2]:
            other = chosen.pop()
            gap = ["\n"] if rng.random() < 0.5 else []
            one = (one[0] + gap + other[0], one[1] + ["O"] * len(gap) + other[1], one[2])
        joined.append(one)
    return joined


def batches(chosen, types: Types, tokens_each: int, rng: random.Random):
    """Rows of similar length: word numbers, tags, mask, and whether MISC is marked."""
    number = {tag: i for i, tag in enumerate(TAGS)}
    order = sorted(range(len(chosen)), key=lambda i: len(chosen[i][0]) + rng.random())
    groups, group = [], []
    for i in order:
        group.append(i)
        if len(group) * len(chosen[i][0]) >= tokens_each:
            groups.append(group)
            group = []
    rng.shuffle(groups)
    for group in groups:
        length = max(len(chosen[i][0]) for i in group)
        ids = np.zeros((len(group), length), np.int64)
        gold = np.full((len(group), length), -100, np.int64)
        for row, i in enumerate(group):
            tokens, tags, _ = chosen[i]
            ids[row, : len(tokens)] = [types(t) for t in tokens]
            gold[row, : len(tags)] = [number[t] for t in tags]
        misc = np.array([chosen[i][2] for i in group])
        yield ids, gold, misc


def loss_of(scores, gold, misc, least: float, smoothing: float = 0.05):
    """Cross entropy; where MISC is not marked, O means "O or MISC".

    Marks that the network gives less than `least` count for nothing: many were a machine's.
    """
    logs = torch.log_softmax(scores, -1)
    open_ = torch.tensor([TAGS.index(t) for t in ("O", "B-MISC", "I-MISC")])
    either = torch.logsumexp(logs[..., open_], -1)
    at = gold.clamp_min(0)
    right = torch.gather(logs, -1, at[..., None])[..., 0]
    right = torch.where((at == 0) & ~misc[:, None], either, right)
    each = -(1 - smoothing) * right - smoothing * logs.mean(-1)
    return each[(gold >= 0) & (right.detach().exp() >= least)].mean()


def train(args: argparse.Namespace) -> None:
    """Read, train, write."""
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    places = frozenset(
        t.text.lower() for n in ("countries", "us_states", "cities") for t in read_embedded(n)
    )
    sentences = [s for s in read_all(args.corpora, places) if s.tokens]
    lexicon = Lexicon(args.vectors, args.lists, sentences)
    names, types, net = lexicon.names(sentences), Types(lexicon), Network()
    mean = copy.deepcopy(net)  # of the weights along the way, which is what is written
    best = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    done, start = 0, time.time()
    for number in range(args.stop or args.epochs):
        chosen = epoch(sentences, names, args.made, rng)
        for tokens, _, _ in chosen:
            for t in tokens:
                types(t)
        hashed, vectors, bits = types.tables()
        made = list(batches(chosen, types, 2048, rng))
        seen = 0.0
        for ids, gold, misc in made:
            for group in best.param_groups:
                share = done / (args.epochs * len(made))
                group["lr"] = 2e-3 * min(1.0, (done + 1) / 200) * max(0.02, 1 - share)
            shown = torch.tensor(ids)
            mask = (shown > 0).float()[..., None]
            gold, misc = torch.tensor(gold), torch.tensor(misc)
            # Some words are hidden but for their shape: names that nobody has seen.
            hidden = torch.rand(shown.shape) < torch.where(gold > 0, 0.15, 0.04)
            letters = hashed[shown]
            letters[hidden] = torch.stack([*(torch.zeros_like(letters[hidden][:, 0]),) * 3,
                                           letters[hidden][:, 3]], -1)  # fmt: skip
            keep = (~hidden).float()[..., None]
            said = net(letters, vectors[shown] * keep, bits[shown] * keep, mask)
            loss = loss_of(said, gold, misc, 0.02 if number else 0.0)
            best.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            best.step()
            with torch.no_grad():
                for slow, fast in zip(mean.parameters(), net.parameters(), strict=True):
                    slow.lerp_(fast, max(0.002, 1 / (done + 1)))
            done += 1
            seen += loss.item()
        print(
            f"epoch {number + 1}: loss {seen / len(made):.4f}, {time.time() - start:.0f} s",
            flush=True,
        )
        write(mean, lexicon, args.out)


def write(net: Network, lexicon: Lexicon, out: Path) -> None:
    """The integers and their steps, and the words."""
    arrays: dict[str, np.ndarray] = {}

    def integers(name: str, weight: torch.Tensor, axis: int | None = None) -> None:
        w = weight.detach().double().numpy()
        size = np.abs(w).max(axis, keepdims=axis is not None)
        step = np.maximum(size, 1e-6) / 127
        arrays[name] = np.clip(np.round(w / step), -127, 127).astype(np.int8)
        arrays[f"{name}_step"] = np.asarray(step, np.float64).reshape(-1)

    for name, table in zip(("words", "prefixes", "suffixes", "shapes"), net.tables, strict=True):
        integers(name, table)
    integers("bits", net.bits)
    integers("vector", net.vector)
    for i, layer in enumerate(net.layers):
        integers(f"layer{i}", layer.weight, 1)
        arrays[f"layer{i}_bias"] = layer.bias.detach().double().numpy()
    integers("out", net.out.weight, 1)
    arrays["out_bias"] = net.out.bias.detach().double().numpy()
    text = "\n".join(lexicon.words).encode()
    arrays["lexicon"] = np.frombuffer(text, np.uint8)
    arrays["lexicon_bits"], arrays["vectors"] = lexicon.bits, lexicon.vectors
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpora", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--lists", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--stop", type=int, help="end after so many epochs of that schedule")
    parser.add_argument("--made", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())
