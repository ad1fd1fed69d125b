"""De-identification: entities replaced by their kind, then training without protection."""

from tacit.corpus import Corpus
from tacit.detection.mentions import Mention
from tacit.training.data.deidentification import deidentified
from tacit.training.methods.plain import PlainTraining


class Deidentify(PlainTraining):
    """Plain training on text whose entities are replaced by the name of their kind."""

    name = "deidentify"
    title = "De-identify: replace what was found by its kind, then train; proves nothing"
    summary = "entities replaced by their kind, then training without protection; no epsilon"
    needs_entities = True
    changes_text = True

    def read(self, part: Corpus, mentions: list[Mention]) -> Corpus:
        """The text with every mention replaced by its kind."""
        return deidentified(part, mentions)


DEIDENTIFY = Deidentify()
