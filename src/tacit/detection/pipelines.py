"""Named-entity recognition by other people's pipelines: spaCy, Presidio and Stanza.

Each is loaded only when asked for, from an installed model or a folder. Nothing here touches
the network: what is not installed is an error that says how to get it.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from tacit.corpus import Record
from tacit.detection.detector import Finding
from tacit.detection.kinds import kind_of
from tacit.errors import DataError, MissingExtra, UsageError

# spaCy refuses texts over a million characters and needs memory in proportion to the longest.
LONGEST_TEXT = 100_000

# spaCy and Stanza give no score; this is what Presidio assumes for such models.
UNSCORED = 0.85

# Presidio's own patterns go down to 0.01 (any nine digits may be a bank account).
PRESIDIO_MINIMUM = 0.35

_Entity = tuple[int, int, str, float, str]
"""Start, end, the pipeline's own label, a score, and our kind where we do not know the label."""


class _Pipeline:
    """What the three share: long texts in pieces, and their labels as our kinds."""

    name: str

    def find(self, records: Sequence[Record]) -> list[list[Finding]]:
        """One list of findings for each record, in order."""
        found: list[list[Finding]] = [[] for _ in records]
        pieces = [(place, *p) for place, r in enumerate(records) for p in text_pieces(r.text)]
        read = self._entities([text for _, _, text in pieces])
        for (place, offset, _), entities in zip(pieces, read, strict=True):
            for start, end, label, score, otherwise in entities:
                kind, why = _kind(label, otherwise), f"{self.name} {label}"
                found[place].append(Finding(start + offset, end + offset, kind, score, why))
        return found

    def _entities(self, texts: list[str]) -> Iterable[Iterable[_Entity]]:
        raise NotImplementedError


class SpacyDetector(_Pipeline):
    """The entities of a spaCy pipeline."""

    name = "spacy"
    summary = "the named entities of a spaCy pipeline"
    option = "MODEL or FOLDER"

    def __init__(self, nlp: Any) -> None:
        """Take a loaded pipeline; components that do not serve entities are switched off."""
        for pipe in [
            p for p in nlp.pipe_names if _NOT_FOR_NER.fullmatch(nlp.get_pipe_meta(p).factory)
        ]:
            nlp.disable_pipe(pipe)
        if not nlp.pipe_names:
            raise UsageError(
                f"the spaCy pipeline {nlp.lang}_{nlp.meta.get('name')} has nothing that finds "
                "entities; give one with `ner` or `entity_ruler`."
            )
        self._nlp = nlp
        labels = [label for pipe in nlp.pipe_names for label in nlp.pipe_labels.get(pipe, ())]
        self.kinds = tuple(sorted({_kind(label, "MISC") for label in labels}))
        self.version = f"spacy {version('spacy')}, {_named(nlp)}"

    @classmethod
    def open(cls, option: str | None) -> "SpacyDetector":
        """The detector of `spacy=MODEL`."""
        if option is None:
            raise UsageError(
                "spacy needs a model; give spacy=NAME of an installed one, such as "
                "en_core_web_sm, or spacy=FOLDER of a saved pipeline."
            )
        return cls(load_spacy("spacy", option))

    def _entities(self, texts: list[str]) -> Iterator[Iterable[_Entity]]:
        for doc in self._nlp.pipe(texts, batch_size=64):
            yield [(e.start_char, e.end_char, e.label_, UNSCORED, "MISC") for e in doc.ents]


class PresidioDetector(_Pipeline):
    """Presidio's analyzer: its patterns with checksums and context, and a spaCy pipeline."""

    name = "presidio"
    summary = "Presidio's patterns, and the named entities of a spaCy pipeline if one is given"
    option = "MODEL or FOLDER"

    def __init__(self, analyzer: Any, language: str, model: str = "no model") -> None:
        """Take an analyzer that is ready for a language; `model` says what else it reads with."""
        self._analyzer = analyzer
        self._language = language
        self.version = f"presidio-analyzer {version('presidio_analyzer')}, {language}, {model}"

    @classmethod
    def open(cls, option: str | None) -> "PresidioDetector":
        """The detector of `presidio` (patterns only) or `presidio=MODEL` (with a spaCy model)."""
        spacy = _import_spacy("presidio")
        nlp = spacy.blank("en") if option is None else load_spacy("presidio", option)
        if "lemmatizer" not in nlp.pipe_names:
            _add_lemmas(spacy, nlp)
        return cls(_offline_analyzer(nlp), nlp.lang, "no model" if option is None else _named(nlp))

    def _entities(self, texts: list[str]) -> Iterator[Iterable[_Entity]]:
        read = self._analyzer.nlp_engine.process_batch(texts, self._language, batch_size=64)
        for text, artifacts in read:
            results = self._analyzer.analyze(
                text=text,
                language=self._language,
                nlp_artifacts=artifacts,
                score_threshold=PRESIDIO_MINIMUM,
            )
            found: list[_Entity] = []
            for r in sorted(results, key=lambda r: (r.start, r.end, r.entity_type)):
                # Whatever its own recognizers look for is personal; a model's label need not be.
                of_model = r.recognition_metadata.get("recognizer_name") == "SpacyRecognizer"
                otherwise = "MISC" if of_model else "PII"
                found.append((r.start, r.end, r.entity_type, round(float(r.score), 4), otherwise))
            yield found


class StanzaDetector(_Pipeline):
    """The entities of a Stanza pipeline."""

    name = "stanza"
    summary = "the named entities of a Stanza pipeline"
    option = "LANGUAGE or FOLDER"

    def __init__(self, pipeline: Any) -> None:
        """Take a loaded pipeline with `tokenize` and `ner`."""
        self._pipeline = pipeline
        self.version = f"stanza {version('stanza')}, {pipeline.lang}"

    @classmethod
    def open(cls, option: str | None) -> "StanzaDetector":
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
        options: dict[str, Any] = {"dir": str(folder)} if folder else {}
        options |= {"processors": "tokenize,ner", "download_method": None}
        try:
            return cls(stanza.Pipeline(language, use_gpu=False, verbose=False, **options))
        except Exception:
            # Stanza raises many kinds of error for models that are not there or not whole.
            raise MissingExtra(
                f"stanza={option} has no models for tokenize and ner; get them with "
                f"`python -c \"import stanza; stanza.download('{language}', "
                "processors='tokenize,ner')\"`, or give the folder that holds them."
            ) from None

    def _entities(self, texts: list[str]) -> Iterator[Iterable[_Entity]]:
        for text in texts:
            ents = self._pipeline(text).ents
            yield [(e.start_char, e.end_char, e.type, UNSCORED, "MISC") for e in ents]


def _named(nlp: Any) -> str:
    """A spaCy pipeline by its language, name and version."""
    return f"{nlp.lang}_{nlp.meta.get('name')} {nlp.meta.get('version')}"


def _kind(label: str, otherwise: str) -> str:
    try:
        return kind_of(label)
    except UsageError:
        return otherwise


# ---- long and odd texts

_SURROGATE = re.compile("[\ud800-\udfff]")


def text_pieces(text: str) -> Iterator[tuple[int, str]]:
    """Offset and text of every piece of one text that is not empty space."""
    # A lone surrogate has no UTF-8 form.
    encodable = _SURROGATE.sub("\ufffd", text)
    for offset, piece in _pieces(encodable, LONGEST_TEXT):
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
            # Just after the last line end of the window's second half, or after its last space.
            line_end = text.rfind("\n", start + (end - start) // 2, end)
            spaces = (place for place in range(end - 1, start, -1) if text[place].isspace())
            last = line_end if line_end >= 0 else next(spaces, end - 1)
            end = last + 1
        yield start, text[start:end]
        start = end


# ---- loading

_NOT_FOR_NER = re.compile(
    "attribute_ruler|(trainable_)?lemmatizer|morphologizer|parser|sentencizer|senter|tagger"
    "|textcat(_multilabel)?"
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


def _engine_around(nlp: Any) -> Any:
    """Presidio's engine around a loaded pipeline; the original would download one."""
    from presidio_analyzer.nlp_engine import NerModelConfiguration, SpacyNlpEngine

    class LoadedPipeline(SpacyNlpEngine):
        def __init__(self) -> None:
            # Each label keeps its name: Presidio's map would make a city a mere LOCATION.
            # A map must not be empty, even where the pipeline has no labels.
            serving = (
                labels
                for pipe, labels in nlp.pipe_labels.items()
                if not _NOT_FOR_NER.fullmatch(nlp.get_pipe_meta(pipe).factory)
            )
            labels = {x: x for x in (*chain.from_iterable(serving), "PERSON")}
            super().__init__(
                ner_model_configuration=NerModelConfiguration(
                    model_to_presidio_entity_mapping=labels
                )
            )
            self.nlp = {nlp.lang: nlp}  # type: ignore[assignment]

        def load(self) -> None:
            """Do nothing: the pipeline is here."""

    return LoadedPipeline()


def _offline_emails(language: str) -> Any:
    """Presidio's e-mail pattern, with domains checked against the list at hand."""
    from presidio_analyzer.predefined_recognizers import EmailRecognizer
    from tldextract import TLDExtract

    # The suffix list that comes with the package; the default extractor fetches a newer one.
    domains = TLDExtract(suffix_list_urls=(), cache_dir=None)

    class OfflineEmailRecognizer(EmailRecognizer):
        def validate_result(self, pattern_text: str) -> bool:
            """Whether the address ends in a known domain."""
            return bool(domains(pattern_text).fqdn)

    return OfflineEmailRecognizer(supported_language=language)


def _offline_analyzer(nlp: Any) -> Any:
    """Presidio's analyzer around a loaded pipeline, with nothing in it that fetches anything."""
    # It warns about labels and languages at every start; errors still come through.
    logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
    try:
        import presidio_analyzer
    except ImportError:
        raise MissingExtra.of("presidio needs the package presidio_analyzer", "ner") from None

    engine = _engine_around(nlp)
    registry = presidio_analyzer.RecognizerRegistry(supported_languages=[nlp.lang])
    registry.load_predefined_recognizers(languages=[nlp.lang], nlp_engine=engine)
    registry.remove_recognizer("EmailRecognizer")
    registry.add_recognizer(_offline_emails(nlp.lang))
    return presidio_analyzer.AnalyzerEngine(
        registry=registry, nlp_engine=engine, supported_languages=[nlp.lang]
    )


def _add_lemmas(spacy: Any, nlp: Any) -> None:
    """Let a word be its own lemma: Presidio finds its context words among lemmas only."""
    if not spacy.language.Language.has_factory("tacit_lemmas"):

        def own_lemmas(doc: Any) -> Any:
            for token in doc:
                token.lemma_ = token.lemma_ or token.lower_
            return doc

        spacy.language.Language.component("tacit_lemmas", func=own_lemmas)
    nlp.add_pipe("tacit_lemmas")


def _stanza_model(option: str) -> tuple[str, Path | None]:
    """Language and folder of an option: `en`, `DIR` with `DIR/en/ner`, or `DIR/en` itself."""
    folder = Path(option).expanduser()
    if not folder.is_dir():
        if option.isalpha() or option.replace("-", "").isalpha():
            return option, None
        raise MissingExtra(
            f"stanza={option} does not exist; give a language such as en, or the folder that "
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
