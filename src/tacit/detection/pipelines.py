"""Other people's pipelines as detectors: spaCy, Presidio and Stanza.

Each is loaded only when asked for, from an installed model or a folder. Nothing here touches
the network: what is not installed is an error that says how to get it.
"""

import logging
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tacit.corpus import Record
from tacit.detection.detector import Detector, Finding, register
from tacit.detection.kinds import kind_of
from tacit.errors import DataError, MissingExtra, UsageError

# spaCy refuses texts over a million characters and needs memory in proportion to the longest.
LONGEST_TEXT = 100_000

# spaCy and Stanza give no score; this is what Presidio assumes for such models.
UNSCORED = 0.85

# Presidio's own patterns go down to 0.01 (any nine digits may be a bank account).
PRESIDIO_MINIMUM = 0.35


class SpacyDetector:
    """The entities of a spaCy pipeline."""

    name = "spacy"

    def __init__(self, nlp: Any) -> None:
        """Take a loaded pipeline; components that do not serve entities are switched off."""
        for pipe in [p for p in nlp.pipe_names if nlp.get_pipe_meta(p).factory in _NOT_FOR_NER]:
            nlp.disable_pipe(pipe)
        if not nlp.pipe_names:
            raise UsageError(
                f"the spaCy pipeline {nlp.lang}_{nlp.meta.get('name')} has nothing that finds "
                "entities; give one with `ner` or `entity_ruler`."
            )
        self._nlp = nlp
        labels = [label for pipe in nlp.pipe_names for label in nlp.pipe_labels.get(pipe, ())]
        self.kinds = tuple(sorted({_kind(label, "MISC") for label in labels}))
        meta = nlp.meta
        self.version = (
            f"spacy {version('spacy')}, {nlp.lang}_{meta.get('name')} {meta.get('version')}"
        )

    def find(self, records: Sequence[Record]) -> list[list[Finding]]:
        """One list of findings for each record, in order."""
        found: list[list[Finding]] = [[] for _ in records]
        pieces = list(_pieces_of(records))
        docs = self._nlp.pipe((text for _, _, text in pieces), batch_size=64)
        for (place, offset, _), doc in zip(pieces, docs, strict=True):
            for ent in doc.ents:
                found[place].append(
                    _finding(
                        (ent.start_char + offset, ent.end_char + offset),
                        ent.label_,
                        UNSCORED,
                        "spacy",
                    )
                )
        return found


class PresidioDetector:
    """Presidio's analyzer: its patterns with checksums and context, and a spaCy pipeline."""

    name = "presidio"

    def __init__(self, analyzer: Any, language: str) -> None:
        """Take an analyzer that is ready for a language."""
        self._analyzer = analyzer
        self._language = language
        self.version = f"presidio-analyzer {version('presidio_analyzer')}, {language}"

    def find(self, records: Sequence[Record]) -> list[list[Finding]]:
        """One list of findings for each record, in order."""
        found: list[list[Finding]] = [[] for _ in records]
        pieces = list(_pieces_of(records))
        read = self._analyzer.nlp_engine.process_batch(
            [text for _, _, text in pieces], self._language, batch_size=64
        )
        for (place, offset, _), (text, artifacts) in zip(pieces, read, strict=True):
            results = self._analyzer.analyze(
                text=text,
                language=self._language,
                nlp_artifacts=artifacts,
                score_threshold=PRESIDIO_MINIMUM,
            )
            for r in sorted(results, key=lambda r: (r.start, r.end, r.entity_type)):
                # Whatever its own recognizers look for is personal; a model's label need not be.
                own = r.recognition_metadata.get("recognizer_name") != "SpacyRecognizer"
                found[place].append(
                    _finding(
                        (r.start + offset, r.end + offset),
                        r.entity_type,
                        round(float(r.score), 4),
                        "presidio",
                        otherwise="PII" if own else "MISC",
                    )
                )
        return found


class StanzaDetector:
    """The entities of a Stanza pipeline."""

    name = "stanza"

    def __init__(self, pipeline: Any) -> None:
        """Take a loaded pipeline with `tokenize` and `ner`."""
        self._pipeline = pipeline
        self.version = f"stanza {version('stanza')}"

    def find(self, records: Sequence[Record]) -> list[list[Finding]]:
        """One list of findings for each record, in order."""
        found: list[list[Finding]] = [[] for _ in records]
        for place, offset, text in _pieces_of(records):
            for ent in self._pipeline(text).ents:
                found[place].append(
                    _finding(
                        (ent.start_char + offset, ent.end_char + offset),
                        ent.type,
                        UNSCORED,
                        "stanza",
                    )
                )
        return found


def _finding(
    span: tuple[int, int], label: str, score: float, who: str, otherwise: str = "MISC"
) -> Finding:
    """A finding of our kind; `why` names the pipeline and its own label."""
    return Finding(span[0], span[1], _kind(label, otherwise), score, f"{who} {label}")


def _kind(label: str, otherwise: str) -> str:
    try:
        return kind_of(label)
    except UsageError:
        return otherwise


# ---- long and odd texts


def _pieces_of(records: Sequence[Record]) -> Iterator[tuple[int, int, str]]:
    """Record, offset and text of every piece to read; a short text is one piece."""
    for place, record in enumerate(records):
        for offset, piece in text_pieces(record.text):
            yield place, offset, piece


def text_pieces(text: str) -> Iterator[tuple[int, str]]:
    """Offset and text of every piece of one text that is not empty space."""
    for offset, piece in _pieces(_encodable(text), LONGEST_TEXT):
        if not piece.isspace():
            yield offset, piece


def _pieces(text: str, longest: int) -> Iterator[tuple[int, str]]:
    """The text in pieces of at most `longest` characters, cut at white space where there is any.

    >>> list(_pieces("one two three", 8))
    [(0, 'one two '), (8, 'three')]
    """
    start = 0
    while start < len(text):
        end = min(start + longest, len(text))
        if end < len(text):
            end = _last_space(text, start, end) or end
        yield start, text[start:end]
        start = end


def _last_space(text: str, start: int, end: int) -> int | None:
    """Just after the last line end of the window's second half, or after its last space."""
    line_end = text.rfind("\n", start + (end - start) // 2, end)
    if line_end >= 0:
        return line_end + 1
    for place in range(end - 1, start, -1):
        if text[place].isspace():
            return place + 1
    return None


def _encodable(text: str) -> str:
    """The same length of text without lone surrogates, which have no UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


# ---- loading

_NOT_FOR_NER = frozenset(
    {
        "attribute_ruler",
        "lemmatizer",
        "morphologizer",
        "parser",
        "sentencizer",
        "senter",
        "tagger",
        "textcat",
        "textcat_multilabel",
        "trainable_lemmatizer",
    }
)


def _import_spacy(who: str) -> Any:
    try:
        import spacy
    except ImportError:
        raise MissingExtra.of(f"{who} needs the package spacy", "ner") from None
    return spacy


def load_spacy(who: str, model: str) -> Any:
    """The pipeline of an installed package or of a folder."""
    spacy = _import_spacy(who)
    folder = Path(model).expanduser()
    is_folder = folder.is_dir()
    if not is_folder and not spacy.util.is_package(model):
        raise MissingExtra(
            f"{who}={model} is neither an installed spaCy model nor a folder; get one with "
            f"`python -m spacy download en_core_web_sm`, or give the folder of a saved pipeline."
        )
    try:
        return spacy.load(folder if is_folder else model)
    except ImportError as error:
        raise MissingExtra(
            f"{who}={model} needs the package {error.name}; install what that model asks for."
        ) from None
    except (OSError, ValueError, KeyError):
        # spaCy's messages are long and speak of its own files: say what to do instead.
        raise DataError(
            f"{who}={model} cannot be read as a spaCy pipeline; give a folder that "
            "`nlp.to_disk` wrote, whole and by a fitting version of spaCy."
        ) from None


def make_spacy(option: str | None) -> Detector:
    """The detector of `spacy=MODEL`."""
    if option is None:
        raise UsageError(
            "spacy needs a model; give spacy=NAME of an installed one, such as "
            "en_core_web_sm, or spacy=FOLDER of a saved pipeline."
        )
    return SpacyDetector(load_spacy("spacy", option))


def make_presidio(option: str | None) -> Detector:
    """The detector of `presidio` (patterns only) or `presidio=MODEL` (with a spaCy model)."""
    spacy = _import_spacy("presidio")
    # It warns about labels and languages at every start; errors still come through.
    logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
    try:
        import presidio_analyzer
        from presidio_analyzer.nlp_engine import NerModelConfiguration, SpacyNlpEngine
        from presidio_analyzer.predefined_recognizers import EmailRecognizer
        from tldextract import TLDExtract
    except ImportError:
        raise MissingExtra.of("presidio needs the package presidio_analyzer", "ner") from None
    nlp = spacy.blank("en") if option is None else load_spacy("presidio", option)
    if "lemmatizer" not in nlp.pipe_names:
        _add_lemmas(spacy, nlp)

    class GivenPipeline(SpacyNlpEngine):
        """An engine around a loaded pipeline; the original would download one."""

        def __init__(self) -> None:
            # Each label keeps its name: Presidio's map would make a city a mere LOCATION.
            # A map must not be empty, even where the pipeline has no labels.
            labels = {x: x for x in (*_entity_labels(nlp), "PERSON")}
            super().__init__(
                ner_model_configuration=NerModelConfiguration(
                    model_to_presidio_entity_mapping=labels
                )
            )
            self.nlp = {nlp.lang: nlp}  # type: ignore[assignment]

        def load(self) -> None:
            """Do nothing: the pipeline is here."""

    # The suffix list that comes with the package; the default extractor fetches a newer one.
    domains = TLDExtract(suffix_list_urls=(), cache_dir=None)

    class OfflineEmailRecognizer(EmailRecognizer):
        """Presidio's e-mail pattern, with domains checked against the list at hand."""

        def validate_result(self, pattern_text: str) -> bool:
            """Whether the address ends in a known domain."""
            return bool(domains(pattern_text).fqdn)

    engine = GivenPipeline()
    registry = presidio_analyzer.RecognizerRegistry(supported_languages=[nlp.lang])
    registry.load_predefined_recognizers(languages=[nlp.lang], nlp_engine=engine)
    registry.remove_recognizer("EmailRecognizer")
    registry.add_recognizer(OfflineEmailRecognizer(supported_language=nlp.lang))
    analyzer = presidio_analyzer.AnalyzerEngine(
        registry=registry, nlp_engine=engine, supported_languages=[nlp.lang]
    )
    return PresidioDetector(analyzer, nlp.lang)


def _entity_labels(nlp: Any) -> list[str]:
    """The labels of all components that may find entities."""
    return [
        label
        for pipe, labels in nlp.pipe_labels.items()
        if nlp.get_pipe_meta(pipe).factory not in _NOT_FOR_NER
        for label in labels
    ]


def _add_lemmas(spacy: Any, nlp: Any) -> None:
    """Let a word be its own lemma: Presidio finds its context words among lemmas only."""
    if not spacy.language.Language.has_factory("tacit_lemmas"):

        def own_lemmas(doc: Any) -> Any:
            for token in doc:
                token.lemma_ = token.lemma_ or token.lower_
            return doc

        spacy.language.Language.component("tacit_lemmas", func=own_lemmas)
    nlp.add_pipe("tacit_lemmas")


def make_stanza(option: str | None) -> Detector:
    """The detector of `stanza=LANGUAGE` or `stanza=FOLDER`."""
    if option is None:
        raise UsageError(
            "stanza needs a model; give stanza=LANGUAGE, such as en, or stanza=FOLDER that "
            "stanza.download filled."
        )
    language, folder = _stanza_model(option)
    try:
        import stanza
    except ImportError:
        raise MissingExtra.of("stanza needs the package stanza", "stanza") from None
    where = {"dir": str(folder)} if folder else {}
    try:
        pipeline = stanza.Pipeline(
            language,
            processors="tokenize,ner",
            download_method=None,
            use_gpu=False,
            verbose=False,
            **where,
        )
    except Exception:
        # Stanza raises many kinds of error for models that are not there or not whole.
        raise MissingExtra(
            f"stanza={option} has no models for tokenize and ner; get them with "
            f"`python -c \"import stanza; stanza.download('{language}', "
            "processors='tokenize,ner')\"`, or give the folder that holds them."
        ) from None
    return StanzaDetector(pipeline)


def _stanza_model(option: str) -> tuple[str, Path | None]:
    """Language and folder of an option: `en`, `DIR` with `DIR/en/ner`, or `DIR/en` itself."""
    folder = Path(option).expanduser()
    if not folder.is_dir():
        if option.isalpha() or option.replace("-", "").isalpha():
            return option, None
        raise MissingExtra(
            f"stanza={option} is not there; give a language such as en, or the folder that "
            "stanza.download(..., model_dir=FOLDER) filled."
        )
    if (folder / "ner").is_dir():
        return folder.name, folder.parent
    languages = sorted(p.parent.name for p in folder.glob("*/ner") if p.is_dir())
    if not languages:
        raise MissingExtra(
            f"stanza={option} holds no ner model; fill it with "
            "`stanza.download('en', processors='tokenize,ner', model_dir=FOLDER)`."
        )
    if len(languages) > 1 and "en" not in languages:
        raise UsageError(
            f"stanza={option} holds several languages ({', '.join(languages)}); give the folder "
            "of one."
        )
    return ("en" if "en" in languages else languages[0]), folder


register("spacy", make_spacy, "the entities of a spaCy pipeline", "MODEL or FOLDER")
register(
    "presidio",
    make_presidio,
    "Presidio's patterns, and the entities of a spaCy pipeline if one is given",
    "MODEL or FOLDER",
)
register("stanza", make_stanza, "the entities of a Stanza pipeline", "LANGUAGE or FOLDER")
