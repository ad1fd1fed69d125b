"""Public text written as treebanks write theirs: what corpora did to it is undone.

A model that has read `it #39;s` and `10 @,@ 800` has learnt marks that no text of its own will
have. CoNLL-2003, like the Penn Treebank, has clitics apart and numbers and compounds whole.
"""

import html
import re

# AG News lost the ampersands of its entities, and has a blank in their place.
_ENTITY = re.compile(r" ?&?(#\d{2,4}|quot|amp|lt|gt|nbsp|[lr][sd]quo|[mn]dash);")
_TAG = re.compile(r"<(?!unk>)/?[A-Za-z][^<>]*>")
_RULES = (
    (re.compile(r"\\+"), " "),  # a line break of AG News
    (re.compile(r" @(.)@ "), r"\1"),  # what WikiText-2 took apart inside of a word
    (re.compile(r"(?<!\S)=(?= |$)"), " "),  # its headings
    (re.compile(r"\b(\w+)n[ ]?['\u2019]t\b"), r"\1 n't"),
    (re.compile(r"(?<=\w)['\u2019](s|re|ve|ll|d|m)\b", re.IGNORECASE), r" '\1"),
    (re.compile(r"[^\S\r\n]+"), " "),
)


def as_treebank(text: str) -> str:
    r"""A text without what AG News and WikiText-2 put into it, and clitics apart.

    >>> as_treebank("It #39;s Ireland #39;s 1 @,@ 200 @-@ tonne ship\\, they don't say.")
    "It 's Ireland 's 1,200-tonne ship , they do n't say."
    """
    text = _TAG.sub(" ", _ENTITY.sub(lambda found: html.unescape(f"&{found[1]};"), text))
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text.strip()
