"""A spaCy pipeline for the policy `contextual=FOLDER`, where the usual models cannot be downloaded.

An English parser that installs as a package (en_ud_model, Apache-2.0) is made for spaCy 2.1 and so
for Python 3.7. It reads public text there; a pipeline of today's spaCy learns from what it said:

    python3.7 -m venv old && old/bin/pip install spacy==2.1.9 blis==0.2.4
    old/bin/pip download --no-deps --no-binary :all: en_ud_model==1.1.0 && tar xzf en_ud_model-*.gz
    python tools/contextual_model.py texts --data DIR > texts.jsonl
    old/bin/python tools/contextual_model.py parse en_ud_model-1.1.0/*/*-1.1.0 < texts.jsonl > parses.jsonl
    python tools/contextual_model.py train parses.jsonl -o build/contextual
    tacit policy show wikitext2 --data DIR --policy contextual=build/contextual/pipeline

`parse` is written for Python 3.7. The text is AG News, and the sentences of QNLI written as those of
WikiText-2 are (words apart, rare ones unknown); no line of WikiText-2, on which the policy is used,
has a part in it.
"""  # noqa: E501

import argparse
import json
import sys

HELD_OUT = 20
"""Of so many parses one is kept to score the pipeline."""


def texts(data):
    """Print public texts, each a line of JSON."""
    import re
    from collections import Counter

    from tacit.corpora import open_corpus

    for text in open_corpus("ag_news", data).column("text").to_pylist()[:3000]:
        print(json.dumps(" ".join(text.split())))
    sentences = open_corpus("qnli", data).column("pair").to_pylist()
    split = [re.findall(r"\w+|[^\w\s]", sentence) for sentence in sentences]
    counts = Counter(word for words in split for word in words)
    for words in split:
        print(json.dumps(" ".join(word if counts[word] > 1 else "<unk>" for word in words)))


def parse(model):
    """Print what an old model says of the texts on the standard input."""
    import spacy

    nlp = spacy.load(model)
    for doc in nlp.pipe(map(json.loads, sys.stdin), batch_size=256):
        print(
            json.dumps(
                {
                    "words": [token.text for token in doc],
                    "spaces": [bool(token.whitespace_) for token in doc],
                    "pos": [token.pos_ for token in doc],
                    "heads": [token.head.i for token in doc],
                    "deps": [token.dep_ for token in doc],
                    "ents": [token.ent_iob_ + ("-" + token.ent_type_ if token.ent_type_ else "")
                             for token in doc],
                }
            )
        )  # fmt: skip


def train(parses, folder):
    """Train parts of speech, a parser and entities on what the old model said."""
    from pathlib import Path

    import spacy
    from spacy.cli.init_config import init_config
    from spacy.cli.train import train as spacy_train
    from spacy.tokens import Doc, DocBin

    vocab = spacy.blank("en").vocab
    kept, held_out = DocBin(), DocBin()
    with open(parses) as lines:
        for number, line in enumerate(lines):
            doc = Doc(vocab, **json.loads(line))
            (kept if number % HELD_OUT else held_out).add(doc)
    place = Path(folder)
    place.mkdir(parents=True)
    kept.to_disk(place / "train.spacy")
    held_out.to_disk(place / "dev.spacy")
    config = init_config(
        lang="en", pipeline=["morphologizer", "parser", "ner"], optimize="efficiency", silent=True
    )
    config.to_disk(place / "config.cfg")
    spacy_train(
        place / "config.cfg",
        place / "trained",
        overrides={
            "paths.train": str(place / "train.spacy"),
            "paths.dev": str(place / "dev.spacy"),
            "training.max_steps": 3000,
            "training.eval_frequency": 1000,
        },
    )
    (place / "trained" / "model-best").rename(place / "pipeline")
    print(place / "pipeline")


def main():
    """Do one of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("texts").add_argument("--data")
    steps.add_parser("parse").add_argument("model")
    training = steps.add_parser("train")
    training.add_argument("parses")
    training.add_argument("-o", dest="folder", required=True)
    given = parser.parse_args()
    if given.step == "texts":
        texts(given.data)
    elif given.step == "parse":
        parse(given.model)
    else:
        train(given.parses, given.folder)


if __name__ == "__main__":
    main()
