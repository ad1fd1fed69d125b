"""Which secrets a tokenizer spells: those that it writes as unknown, no model can tell apart.

A vocabulary of whole words knows some words and writes all others as one unknown token. Secrets of
such words are one secret to the model; how likely it finds them says nothing about any of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from tacit.attacks.canaries import Planted, Template
from tacit.attacks.target import Target
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.presets import located
from tacit.training.models import tokens
from tacit.training.phases.run_context import tokenizer_of
from tacit.training.settings import read_run

WORDS = 108
"""So many words are chosen anew, as our own list has."""
FEWEST = 20
"""Of fewer words too few different secrets can be made."""
_TRIED = 500


def spells(
    tokenizer: PreTrainedTokenizerBase, template: Template, secrets: Sequence[str]
) -> NDArray[np.bool_]:
    """Whether each secret, where it stands in the template, holds no unknown token."""
    unknown = tokenizer.unk_token_id
    if unknown is None or not secrets:
        return np.ones(len(secrets), dtype=bool)
    found = tokenizer(
        [template.text(s) for s in secrets], add_special_tokens=False, return_offsets_mapping=True
    )
    start = len(template.before)
    fine = []
    for ids, offsets in zip(found["input_ids"], found["offset_mapping"], strict=True):
        own = [i for i, (_, stop) in zip(ids, offsets, strict=True) if stop > start]
        # A secret that leaves no token at all is not spelled either.
        fine.append(bool(own) and unknown not in own)
    return np.array(fine, dtype=bool)


def spelled_form(tokenizer: PreTrainedTokenizerBase, template: Template) -> Template | None:
    """The form with only what a tokenizer spells at each place; None where too little is left.

    Where words stand apart, each is tried by itself. Where nothing stands between, as between
    digits, a secret is spelled as a whole or not at all.
    """
    if template.joint.isspace():
        kept = []
        for slot in template.slots:
            fine = spells(tokenizer, template, slot)
            kept.append(tuple(w for w, good in zip(slot, fine, strict=True) if good))
        if any(len(slot) < 2 for slot in kept):
            return None
        template = replace(template, slots=tuple(kept))
    rng = np.random.default_rng(0)
    tried = [template.secret([int(rng.integers(len(s))) for s in template.slots])
             for _ in range(_TRIED)]  # fmt: skip
    return template if spells(tokenizer, template, tried).all() else None


@dataclass(frozen=True)
class Spelled:
    """The canaries of a plan that a tokenizer spells, and how many it does not."""

    plan: Planted
    left_out: int

    def notes(self) -> list[str]:
        """What to say of those that are left out."""
        if not self.left_out:
            return []
        return [
            f"{self.left_out:,} of {self.left_out + len(self.plan.canaries):,} canaries hold words "
            "that the tokenizer does not know and are left out; the others are compared with "
            f"the {self.plan.template.size:,} secrets of words that it knows"
        ]


def spelled_canaries(target: Target) -> Spelled:
    """The canaries of a target that its tokenizer spells; refused where none that was planted is.

    Only these can be ranked, guessed or reproduced.
    """
    assert target.planted is not None
    return spelled_plan(target.reader.tokenizer, target.planted, str(target.folder))


def spelled_plan(tokenizer: PreTrainedTokenizerBase, plan: Planted, whose: str) -> Spelled:
    """The same for a plan, and for the tokenizer of whoever is named."""
    form = spelled_form(tokenizer, plan.template)
    kept: list[bool] = []
    if form is not None:
        kept = [bool(k) for k in spells(tokenizer, form, [c.secret for c in plan.canaries])]
    own = tuple(c for c, good in zip(plan.canaries, kept, strict=False) if good)
    if form is None or (plan.inside() and not any(c.planted for c in own)):
        raise DataError(
            f"The tokenizer of {whose} writes the canaries of the form {plan.template.name} as "
            "unknown, so a model cannot tell them apart; plant some that it spells (tacit canaries "
            f"plant --for RUN.yml){_or_digits(plan.template)}, or name attacks that need no "
            "canaries (--using membership,linkage)."
        )
    return Spelled(replace(plan, template=form, canaries=own), len(plan.canaries) - len(own))


def _or_digits(template: Template) -> str:
    digits = all(word.isdigit() for slot in template.slots for word in slot)
    return ", or let it spell numbers (tokenizer.digits: true)" if digits else ""


def tokenizer_for(where: str, corpus: Corpus) -> PreTrainedTokenizerBase:
    """The tokenizer that a run file asks for on this corpus, or that of a folder or a package."""
    file = located(Path(where))
    if file.suffix in (".yml", ".yaml"):
        return tokenizer_of(read_run(file), corpus)
    return tokens.load_tokenizer(where)


def _require_known(tokenizer: PreTrainedTokenizerBase, template: Template, whose: str) -> None:
    words = template.slots[0]
    known = spells(tokenizer, template, words)
    unknown = [word for word, good in zip(words, known, strict=True) if not good]
    if unknown:
        raise UsageError(
            f"The tokenizer of {whose} does not know {len(unknown):,} of the {len(words):,} "
            f"given words (such as {', '.join(unknown[:3])}); leave them out, or leave out "
            "--words to have words chosen that it knows."
        )


def form_for(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    whose: str,
    rng: np.random.Generator,
    *,
    own: bool = False,
) -> tuple[Template, str]:
    """The form with what a tokenizer spells, words chosen anew where it knows few of ours.

    With it comes the sentence that says what changed, if anything did. Words of one's `own` that
    the tokenizer does not know are refused, and some of them named.
    """
    if own:
        _require_known(tokenizer, template, whose)
    form = spelled_form(tokenizer, template)
    if template.name == "words" and (form is None or len(form.slots[0]) < FEWEST):
        words = _own_words(tokenizer, template, rng)
        if len(words) < FEWEST:
            raise UsageError(
                f"The tokenizer of {whose} knows fewer than {FEWEST} words of four letters or "
                "more; give words that it knows (--words FILE), or another --template."
            )
        return replace(template, slots=(words,) * len(template.slots)), (
            f"Of the listed words the tokenizer of {whose} knows too few; {len(words)} of its own "
            "were chosen instead."
        )
    if form is None:
        raise UsageError(
            f"The tokenizer of {whose} writes secrets of the form {template.name} as unknown; give "
            "--template words, whose words are chosen from those that it knows"
            f"{_or_digits(template)}."
        )
    if form == template:
        return form, ""
    return form, f"Words that the tokenizer of {whose} does not know are left out of the secrets."


def _own_words(
    tokenizer: PreTrainedTokenizerBase, template: Template, rng: np.random.Generator
) -> tuple[str, ...]:
    """Words of a tokenizer's own vocabulary, drawn so that the same seed draws the same."""
    every = {str(tokenizer.decode([i])).strip() for i in tokenizer.get_vocab().values()}
    able = sorted(w for w in every if w.isalpha() and w.islower() and 4 <= len(w) <= 9)
    able = [w for w, good in zip(able, spells(tokenizer, template, able), strict=True) if good]
    if len(able) > WORDS:
        able = [able[int(i)] for i in np.sort(rng.choice(len(able), WORDS, replace=False))]
    return tuple(able)
