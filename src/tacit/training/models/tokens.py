"""Tokenizers: a pretrained one, a byte-level BPE of public text, or the papers' words.

A vocabulary says which strings are worth an entry. One that was learned from private text gives
some of that text away whatever is trained later, so the default here never sees any.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tacit.corpora import customersim
from tacit.corpora.preprocessing import MIN_COUNT, Leak
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.packaged_models import located, require_gguf, tokenizer_of_vectors
from tacit.training.models.offline import quiet

PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
SPECIAL = (PAD, START, END, UNKNOWN)
COUNTED = "counted_from_private_text"
"""Under this name tokenizer_config.json says that the vocabulary is a leak."""

PUBLIC_DIALOGS = 1500
PUBLIC_SEED = 20_030_531

# A word runs from its first letter or digit to its last: "it's" and "3.5" stay whole.
_WORD = r"\w+(?:[^\w\s]+\w+)*"
_WORD_OR_DIGIT = r"[^\W\d]+(?:[^\w\s]+[^\W\d]+)*|\d"
_MARK = r"|[^\w\s]"


@cache
def public_texts() -> tuple[str, ...]:
    """The text that a vocabulary is learned from if none is given: all of it made by us.

    A short text of our own, and CustomerSim dialogs of a fixed seed; made once in a process.
    """
    own = (
        resources.files("tacit.training.models").joinpath("public.txt").read_text(encoding="utf-8")
    )
    made = customersim.stream(PUBLIC_DIALOGS, PUBLIC_SEED)
    return *own.splitlines(), *(record.text for record in made)


@lru_cache(maxsize=8)
def _learned_bpe(texts: tuple[str, ...], size: int, min_count: int) -> str:
    """A tokenizer as JSON; runs of one process on the same public text learn it once."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    # Offsets without the space before a word: that belongs to nobody's name.
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def byte_level_bpe(
    texts: Iterable[str] | None = None, size: int = 4000, *, min_count: int = 2
) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `size` entries, learned from *public* texts.

    Every string can be written with it. The same texts give the same tokenizer. Texts are the
    ones of `public_texts` if none are given; private text must not be among them, and nothing
    here could notice.
    """
    smallest = len(SPECIAL) + 256
    if size < smallest:
        raise UsageError(f"size={size} is too small; give {smallest} or more: the bytes alone.")
    learned = tuple(public_texts() if texts is None else texts)
    return _wrapped(Tokenizer.from_str(_learned_bpe(learned, size, min_count)))


def frequencies(tokenizer: PreTrainedTokenizerBase, public: Corpus) -> NDArray[np.float64]:
    """The share of every token in public text; what is not seen counts as seen half a time."""
    counts = np.full(len(tokenizer), 0.5)
    for text in public.column("text").to_pylist():
        np.add.at(counts, tokenizer(text)["input_ids"], 1)
    if tokenizer.eos_token_id is not None:
        counts[tokenizer.eos_token_id] += len(public)  # a text is read to its end
    return counts / counts.sum()


def _frequent(
    counts: Mapping[str, int], size: int | None, min_count: int | None
) -> tuple[list[str], str]:
    """The words to keep, and by which rule: so many, or all that were seen so often."""
    for name, value in (("size", size), ("min_count", min_count)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value} is too small; give 1 or more.")
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    if size is not None:
        return ranked[:size], f"the {size:,} most frequent"
    least = MIN_COUNT if min_count is None else min_count
    return [w for w in ranked if counts[w] >= least], f"seen at least {least} times"


def word_vocabulary(
    corpus: Corpus,
    *,
    size: int | None = None,
    min_count: int | None = None,
    lower: bool = True,
    punctuation: bool = False,
    digits: bool = False,
) -> tuple[PreTrainedTokenizerFast, Leak]:
    """The papers' vocabulary of whole words, and what it leaks: it is counted from the corpus.

    Kept are the `size` most frequent words (ties in alphabetical order), or those seen at least
    `min_count` times (3 unless told), in the train split where there is one. Other words become
    `<unk>`; without `punctuation`, marks that stand alone go. With `digits`, numbers are spelled:
    a digit is a word, so that a model can learn numbers, and give them away.

    Source: Lai et al. 2022, appendix on data. Guarantee: none; put the leak into the certificate.
    """
    if size is not None and min_count is not None:
        raise UsageError(f"size={size} and min_count={min_count} are both given; give one.")
    word = _WORD_OR_DIGIT if digits else _WORD
    pattern = Regex(word + _MARK if punctuation else word)
    cut = pre_tokenizers.Split(pattern, behavior="removed", invert=True)
    rows = corpus.only("train") if "train" in corpus.splits() else corpus
    counts, alone = _count(rows, cut, lower)
    kept, rule = _frequent(counts, size, min_count)
    where = "the {:,} records of the train split" if rows is not corpus else "{:,} records"
    leak = Leak(
        counted_from=where.format(len(rows)),
        rule=rule,
        words_seen=len(counts),
        words_kept=len(kept),
        words_of_one_user=None if alone is None else len(alone.intersection(kept)),
    )
    entries = {word: number for number, word in enumerate([*SPECIAL, *kept])}
    tokenizer = Tokenizer(models.WordLevel(entries, unk_token=UNKNOWN))
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = cut
    return _wrapped(tokenizer), leak


def mark_as_counted(tokenizer: PreTrainedTokenizerBase, leak: str) -> None:
    """Have a vocabulary that was counted from private text say so wherever it is saved."""
    tokenizer.init_kwargs[COUNTED] = leak


def counted(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """What a vocabulary that a run counted from private text leaks; None for any other."""
    leak = tokenizer.init_kwargs.get(COUNTED)
    return None if leak is None else str(leak)


def whole_words(tokenizer: PreTrainedTokenizerBase) -> list[str] | None:
    """The entries of a vocabulary of whole words; None where it is made of smaller pieces."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "WordLevel":
        return None
    special = set(tokenizer.all_special_tokens)
    return [word for word in tokenizer.get_vocab() if word not in special]


def _count(
    corpus: Corpus, cut: pre_tokenizers.PreTokenizer, lower: bool
) -> tuple[Counter[str], set[str] | None]:
    """How often each word stands in the corpus, and which words only one user wrote."""
    lowered = normalizers.Lowercase()
    counts: Counter[str] = Counter()
    writer: dict[str, Any] = {}
    several = object()
    users = corpus.column("user").to_pylist() if "user" in corpus.columns else None
    for row, text in enumerate(corpus.column("text").to_pylist()):
        # The mark of a word that somebody took out before is not a word of the corpus.
        text = text.replace(UNKNOWN, " ")
        text = lowered.normalize_str(text) if lower else text
        words = [word for word, _ in cut.pre_tokenize_str(text)]
        counts.update(words)
        if users is not None:
            for word in set(words):
                if writer.setdefault(word, users[row]) != users[row]:
                    writer[word] = several
    if users is None:
        return counts, None
    return counts, {word for word, user in writer.items() if user is not several}


def _wrapped(tokenizer: Tokenizer, pad: str = PAD) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=START,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(where: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, a GGUF file or a package, without asking a network.

    Where it has no token for padding, the end of text serves: padding is masked everywhere.
    """
    path = located(where)
    if path.suffix == ".safetensors":
        return _of_vectors(tokenizer_of_vectors(path))
    options: dict[str, Any] = {"local_files_only": True}
    if path.suffix == ".gguf":
        require_gguf(path)
        path, options["gguf_file"] = path.parent, path.name
    try:
        with quiet():  # it looks at the model's type too, and remarks on those it does not know
            tokenizer = AutoTokenizer.from_pretrained(path, **options)
    except Exception:  # the library raises whatever its parsers raise
        raise DataError(
            f"{path} holds no tokenizer that transformers can load; a folder with "
            "tokenizer.json and tokenizer_config.json does."
        ) from None
    if not tokenizer.is_fast:
        raise DataError(
            f"{path} has a tokenizer without character offsets; give one with a tokenizer.json."
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise DataError(f"{path} has a tokenizer with neither pad_token nor eos_token.")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def _of_vectors(file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of static word vectors: their mean is over the text, without special tokens."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
    return _wrapped(tokenizer, pad=END)
