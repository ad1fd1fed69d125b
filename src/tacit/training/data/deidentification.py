"""De-identification: every mention replaced by the name of its kind."""

from collections.abc import Sequence

import pyarrow as pa

from tacit.corpus import Corpus
from tacit.detection.mentions import Mention


def deidentified(corpus: Corpus, mentions: Sequence[Mention]) -> Corpus:
    """The corpus with `[PERSON]` and the like where entities stood; it promises nothing.

    Tokens, tags and spans, which belong to the old text, are left out.
    """
    by_record: dict[str, list[Mention]] = {}
    for mention in mentions:
        by_record.setdefault(mention.record, []).append(mention)
    texts = []
    ids, old = corpus.column("id").to_pylist(), corpus.column("text").to_pylist()
    for record, text in zip(ids, old, strict=True):
        parts, at = [], 0
        for m in sorted(by_record.get(record, ()), key=lambda m: m.start):
            parts += [text[at : m.start], f"[{m.kind}]"]
            at = m.end
        texts.append("".join([*parts, text[at:]]))
    kept = [n for n in corpus.columns if n not in ("text", "tokens", "tags", "pos", "spans")]
    table = corpus.table.select(kept).append_column("text", pa.array(texts, pa.string()))
    return Corpus(table, name=corpus.name)
