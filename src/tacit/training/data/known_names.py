"""By which name a mark is known: its folded spelling, or what an alias file joins that with.

The bound for a name counts users of one name, so a spelling may not be one name here and another
there, and names may be joined by nothing but a rule that was fixed before the text was read.
"""

from collections.abc import Sequence

from tacit.detection.mentions import Entity, Mention, fold
from tacit.detection.provenance import Provenance
from tacit.errors import DataError, PrivacyRefused


def require_marks_of_others(provenance: Provenance) -> None:
    """Refuse marks by detectors that learned from the text that they marked.

    Without one user they would have learned otherwise, and would mark other places in the texts of
    everybody else, who are promised not to change.
    """
    if provenance.learned:
        raise PrivacyRefused(
            f"{', '.join(provenance.learned)} learned from the text in which it marks names, so "
            "whoever leaves it changes what is marked in the texts of others; train the tagger on "
            "other text, or use other detectors."
        )


class KnownNames:
    """The names of marks, from the entity table beside them where there is one."""

    def __init__(self, entities: Sequence[Entity], provenance: Provenance) -> None:
        self._known = {entity.id: entity.name for entity in entities}
        self._aliased = provenance.aliases is not None
        self._names: dict[tuple[str, str], str] = {}

    def name(self, mention: Mention, spelled: str) -> str:
        """The name of a mark that is spelled so, when folded.

        *Guarantee*: a function of kind and spelling, which differs from the spelling only where an
        alias file says so.
        """
        known = self._known.get(mention.entity, spelled)
        name = spelled if fold(known, mention.kind) == spelled else known
        if name != spelled and not self._aliased:
            raise DataError(
                "The entity table beside the mentions gives a name another spelling than the text, "
                "and no alias file is recorded that joins them; make the mentions again with "
                "`tacit detect` (--aliases FILE), or take the table away."
            )
        if self._names.setdefault((mention.kind, spelled), name) != name:
            raise DataError(
                "The entity table beside the mentions knows one spelling under two names, and a "
                "bound holds for one; make the mentions again with `tacit detect`."
            )
        return name
